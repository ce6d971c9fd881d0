"""An agent inside a pod: `python -m bireme.agent.pod FILE` starts it and its way to the daemon."""
