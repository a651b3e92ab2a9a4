"""Does the planner move when it should, and only then? Played in a world that it does not know.

world/      agents and nodes with laws of their own; imports nothing of the policy
fits.py     what a warm-up would learn of those nodes
watch.py    the planner's own meter on what it would hear
cases.py    where the present split is best, and where another is better
run.py      every rule on every window
report.py   false and right moves beside the paper's rule
"""
