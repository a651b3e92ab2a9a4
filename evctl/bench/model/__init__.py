"""`evctl bench model`: does a node's learned model predict what it was not fitted to?

traffic.py      requests of agents, closed loop, and what the engine said of its iterations
predictors.py   ours, and what it is compared with
errors.py       how far predictions are off, and how far one iteration is off itself
run.py          all of it; report.py tells it
"""
