# What every snippet of a case may use, on either system.
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
