"""`python -m envguard`."""

from envguard.cli.app import main

if __name__ == "__main__":
    main()
