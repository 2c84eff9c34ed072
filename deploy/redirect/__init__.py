"""`kquota redirect`: rules of the kernel that lead an application's connections to the sidecar."""
