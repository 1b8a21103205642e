"""`python -m fedbalancer` is the command line."""

from fedbalancer.cli import main

main()
