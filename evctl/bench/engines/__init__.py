"""Real engines for a bench: started as processes, spoken to as the control plane does.

models.py   where a model lies on this machine
node.py     one engine process
results.py  what came back for one request
driver.py   several engines, and everything they said
"""
