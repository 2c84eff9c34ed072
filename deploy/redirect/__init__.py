"""`kquota redirect`: kernel rules that redirect an application's connections to the sidecar."""
