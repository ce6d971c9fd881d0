"""`scontrol help`. Imported only when somebody asks."""

HELP = """\
scontrol [OPTIONS] [COMMAND]

Without a command it prompts for commands until `quit`. Names may be shortened while they stay unambiguous.

Look
  show job [ID]              everything about a job; also 42_7 and 42+1
  show node|partition [NAME] nodes, partitions
  show step [JOB[.STEP]]     running steps
  show config                slurm.conf with its defaults
  show topology [NAME]       switches or blocks; those above a node
  show hostnames [LIST]      one name a line; default $SLURM_JOB_NODELIST
  show hostlist|hostlistsorted NAMES
  show daemons|aliases|licenses|reservation|slurmd
  completing                 jobs whose nodes are being cleared
  listpids [JOB[.STEP]]      processes of jobs on this machine
  pidinfo PID                the job of a process
  ping                       does the daemon answer
  errnumstr N                the text of an error number

Change jobs (ids with commas, or jobname=NAME)
  hold, uhold, release       keep from starting, and let start again
  requeue, requeuehold       queue again; and hold
  suspend, resume            stop the processes, and continue them
  update JobId=ID KEY=VALUE  TimeLimit, Partition, Priority, Name, Dependency, ...
  write batch_script ID [FILE|-]
  wait_job ID                until it has its nodes

Change the cluster
  update NodeName=LIST State=DRAIN|RESUME|DOWN Reason="..."
  update PartitionName=NAME KEY=VALUE
  create reservation[=NAME] StartTime=now Duration=60 Nodes=LIST Users=LIST [Flags=LIST ...]
  update reservation=NAME KEY=VALUE
  delete reservation=NAME
  reconfigure                read the configuration files again
  shutdown                   end the daemon; jobs run on

Options
  -a, --all        hidden partitions too        -o, --oneliner  one line for each record
  -d, --details    more about jobs and nodes    -Q, --quiet     only errors
      --json       as JSON                          --yaml      as YAML
  -h, --help       this text                    -V, --version   the version
"""
