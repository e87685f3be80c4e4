"""What a job says of the gangs of its pods: `families` turns its description (`kinds`) into a PodGroup."""
