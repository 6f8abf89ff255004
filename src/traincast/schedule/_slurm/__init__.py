"""Slurm as sites run it: slurm.conf and accounting to a policy that orders, places, preempts and backfills as slurmctld does."""
