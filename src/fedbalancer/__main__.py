"""`python -m fedbalancer` is the command line."""

from fedbalancer.cli import main

if __name__ == "__main__":  # worker processes import this file without running it
    main()
