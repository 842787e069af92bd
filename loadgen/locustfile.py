"""What `locust -f` is given, by a user or by `surgeproof run`; `commands.locust_entry` decides what it runs."""

from surgeproof.commands.locust_entry import P0User, P1User, P2User

__all__ = ["P0User", "P1User", "P2User"]
