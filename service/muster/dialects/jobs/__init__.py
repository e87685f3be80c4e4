"""The gangs of a job's pods: `families` turns a job's description (`kinds`) into a PodGroup."""
