"""A cluster and its agents, played event by event, that knows nothing of the policy.

Its laws are not those that the policy fits: prefill pays per chunk and more for short prompts,
decode slows with context, every duration is noisy, nodes differ. Its load is not the mean that
the policy forecasts from: heavy tails, a mix that drifts from minute to minute, sub-agents that
start together while their parent waits.
"""
