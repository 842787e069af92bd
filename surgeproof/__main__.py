"""`python -m surgeproof` is the command."""

from surgeproof.commands.main import main

main()
