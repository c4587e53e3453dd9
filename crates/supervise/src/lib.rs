//! Starting, watching and killing a server in its cgroup
