#!/bin/bash
# TaskProlog of Slurm, or a first line of a job script: is this node's environment the one that was recorded?
# REFERENCE names it: a checkpoint, a fingerprint file (`envguard snapshot -o FILE`) or a lock.
# What a TaskProlog prints after "print " appears in the job's output.
if answer=$(envguard diff "${REFERENCE:?names the reference}" -q 2>&1); then
    echo "print envguard: $SLURMD_NODENAME matches $REFERENCE"
else
    code=$?
    echo "print envguard: $SLURMD_NODENAME differs (exit $code): $answer"
    exit "$code"
fi
