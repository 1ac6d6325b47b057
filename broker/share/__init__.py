"""Share groups (KIP-932): records of a partition shared between consumers, acquired and acknowledged one by one."""
