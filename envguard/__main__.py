"""`python -m envguard`."""

from envguard.cli.entry import main

if __name__ == "__main__":
    main()
