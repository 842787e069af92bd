"""`python -m surgeproof` is the command."""

from surgeproof.cli import main

main()
