"""Real nodes for the local cluster: a kubelet with containerd and runc each, in namespaces of its own.

    nodes.py          what the cluster calls: start nodes, wait until their GPUs are offered
    keeper.py         the process of one node on this machine: starts it, ends it, removes what is left
    inside.py         the first process inside the node's namespaces: containerd, kubelet, device plugin
    configuration.py  their files (pure)
    images.py         the container image of pods on real nodes (pure)
    network.py        the node's link to this machine
    cgroups.py        the node's cgroups
    packages.py       programs that come as Debian packages
    support.py        whether this machine can have real nodes

No Docker. Real nodes need root, so the cluster has only fake ones where they can't be had.
"""
