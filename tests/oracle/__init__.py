"""The oracle: the same cases on a real Slurm and on Bireme, compared item by item.

    python -m tests.oracle                    run everything, show what differs and the totals
    python -m tests.oracle -k environment     some groups or cases
    python -m tests.oracle --show 'a case'    what both said

`cases/*.toml` are the cases (a group shares one pair of clusters), `layouts.py` the clusters, `differences.toml` what
is known to differ, with the reason. A difference that is not listed fails its case; a listed one that is gone, too.
"""
