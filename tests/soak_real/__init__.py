"""The embedded engine for a long time, with real daemons, agents and jobs that are killed at random.

`python -m tests.soak_real --seconds 600 --seed 1` (`make soak-real SECONDS=600 SEED=1`). `jobs` draws what is
submitted and what each job does, `people` submit and ask, `kills` chooses victims and moments, `witness` has the rules
and `soak` plays rounds of it. The truth is a log that every job appends to, and locks that it holds with all of its
children: no record of the cluster's own is asked what ran.
"""
