"""What can be resident: the protocol of a kernel, and the kinds there are."""
