"""`evctl bench exact`: is KV the same whichever way it came, and so the output?

prompts.py   what is asked
stage.py     engines of one model and number of ranks, and what one request did there
paths.py     the ways KV may take, each with what proves that it was taken
compare.py   tokens and page checksums against those of the first path
run.py       all of it; report.py tells it
"""
