"""Who is a gang, by the keys of pods and by PodGroups: one module for each system whose words are read."""
