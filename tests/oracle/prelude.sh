# What every snippet of a case may use, on either system; SYSTEM says on which.
LIVE=PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING,REQUEUED
PATIENCE=110

# submit OPTIONS...: sbatch; prints the job's id.
submit() { sbatch --parsable "$@" | cut -d';' -f1; }

# again PAUSE: waits; gives up with the queue as the reason when the snippet has waited too long.
again() {
    sleep "$1"
    [ $SECONDS -lt $PATIENCE ] && return
    echo "gave up: $(squeue -h -t all -o '%i %T %r' 2>&1 | tr '\n' ';')" >&2
    kill -TERM $$
}

# done_with ID...: waits until no task of these jobs is left.
done_with() {
    local list
    list=$(IFS=,; echo "$*")
    while [ -n "$(squeue -h -o %i -t "$LIVE" -j "$list" 2>/dev/null)" ]; do again 0.4; done
}

# until_state ID STATE...: waits until every task of the job is in one of these states.
until_state() {
    local id=$1 wanted said good word
    shift
    wanted=" $* "
    while :; do
        said=$(squeue -h -o %T -t all -j "$id" 2>/dev/null)
        good=${said:+yes}
        for word in $said; do [[ $wanted == *" $word "* ]] || good=; done
        [ -n "$good" ] && return
        again 0.3
    done
}

# until_says TEXT COMMAND...: waits until a line of what the command says contains the text (a basic regular expression).
until_says() {
    local text=$1
    shift
    until "$@" 2>/dev/null | grep -q -e "$text"; do again 0.3; done
}

# settled: waits until the scheduler has looked at all that was said before.
#
# Bireme judges a job as soon as it comes: none is left without a reason. Slurm has two schedulers that count their
# passes; the pass that goes on now may have begun before, so the one after it must end too. They look again only when
# something changed, so the partitions are told what they are; backfill counts only passes over jobs that stand in line.
settled() {
    if [ "$SYSTEM" != slurm ]; then
        while squeue -h -r -t PD -o %r | grep -qx None; do again 0.1; done
        return
    fi
    local begun=() now=()
    read -ra begun < <(passes)
    until read -ra now < <(passes) && [ "${now[0]}" -ge $((begun[0] + 2)) ] &&
        { [ "${now[1]}" -ge $((begun[1] + 2)) ] || ! in_line; }; do
        touch_partitions
        again 0.2
    done
}

# passes: how many passes Slurm's main scheduler and its backfill scheduler have made.
passes() { sdiag | sed -n 's/.*Total cycles: *//p' | xargs; }

# in_line: whether a job waits for anything that the backfill scheduler can find.
in_line() { squeue -h -t PD -o %r | grep -q 'None\|Resources\|Priority\|Assoc\|QOS\|Licenses\|Req\|Reserv'; }

touch_partitions() {
    local name state
    scontrol -o show partition | grep -o 'PartitionName=[^ ]*\| State=[^ ]*' | while read -r name && read -r state; do
        scontrol update "$name" "$state"
    done
}

# ended ID...: how jobs ended, as sacct tells it, once the whole of it has reached the history.
ended() {
    done_with "$@"
    local id
    for id in "$@"; do
        while sacct -n -X -P -j "$id" -o jobname,end 2>/dev/null | grep -q 'allocation|\||Unknown\||$' ||
            [ -z "$(sacct -n -X -P -j "$id" -o end)" ]; do again 0.5; done
        sacct -n -P -j "$id" -o jobid,jobname,state,exitcode,derivedexitcode
    done
}
