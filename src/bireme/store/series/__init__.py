"""Time series on disk (`ports.Series`): columns of samples in a database of their own, thinned out with age.

`store` is what the composition roots make. Below it: `fresh` (the newest rounds, in memory and as one row a gatherer
and flush), `chunks` (everything older, a row for each metric of a node in a window of time), `thinning`, `reading`,
`subjects` and `held_gpus`; at the bottom `cells` and `columns`, which know no database.
"""
