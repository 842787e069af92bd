"""YAML files in which nothing is lost: a key that stands twice is an error, not the last of the two."""

from pathlib import Path
from typing import Any

from surgeproof.errors import ConfigError

_MAX_DEPTH = 50
_MAX_VALUES = 100_000


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML file of plain data.

    Args:
        path: the file.
        what: what it holds, for the message.

    Raises:
        ConfigError: it cannot be read, is not YAML, or names a key twice.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses keys that stand twice, and files that grow without bounds as they are read."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._depth = self._values = 0
            self._values_of: dict[str, int] = {}

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            anchor: str = getattr(event, "anchor", None) or ""
            before = self._values
            if isinstance(event, yaml.AliasEvent):
                # What an anchor stands for counts each time; within itself it has no end.
                self._values += self._values_of.get(anchor, _MAX_VALUES)
            self._values += 1
            self._depth += 1
            if self._depth > _MAX_DEPTH or self._values > _MAX_VALUES:
                line = event.start_mark.line + 1
                raise ConfigError(
                    f"{path}, line {line}: values are nested deeper than {_MAX_DEPTH}, or are more than {_MAX_VALUES:,}"
                    " with all that aliases (*name) repeat"
                )
            node = super().compose_node(parent, index)
            self._depth -= 1
            if anchor and not isinstance(event, yaml.AliasEvent):
                self._values_of[anchor] = self._values - before
            return node

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: dict[str, int] = {}
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise ConfigError(
                            f"{path}, line {line}: {key.value!r} stands twice (first in line {seen[key.value]}): "
                            "only one would be used; merge the two"
                        )
                    seen[key.value] = line
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(path.read_text("utf-8"), Loader=Loader)  # noqa: S506 - a subclass of the safe loader
    except OSError as exc:
        raise ConfigError(f"cannot read {what} {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(exc).split())}") from exc
