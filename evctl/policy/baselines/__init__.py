"""What others do, behind our ports, so that it runs on a live cluster and in the simulator."""
