"""An engine that runs nothing: jobs last as long as their workload says, on a virtual clock."""
