"""Generated programs run in a process of their own, behind walls of the kernel: no network, no files, no processes."""
