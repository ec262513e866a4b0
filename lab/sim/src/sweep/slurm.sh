#!/bin/sh
# One task of the job array of `evenkeel-lab sim sweep --on slurm`: makes one part of the sweep. Where
# that fails, the task goes back into Slurm's queue, at most so many times.
#
#   slurm.sh RETRIES COMMAND...
retries=$1
shift
"$@" "$SLURM_ARRAY_TASK_ID" && exit 0
code=$?
if [ "${SLURM_RESTART_COUNT:-0}" -lt "$retries" ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
