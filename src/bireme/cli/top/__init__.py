"""bireme top: GPUs with their real use, nodes and the queue on one screen, live; a job's page; its log.

`command` is the loop, `looking` asks the daemon, `view` says what a key does, `screen` and `job_page` draw. It decides
nothing: what it shows are the records of sinfo and squeue, and what gatherers measured.
"""
