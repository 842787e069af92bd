"""YAML files in which nothing is lost: a key that stands twice is an error, not the last of the two."""

from pathlib import Path
from typing import Any

from surgeproof.errors import ConfigError


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
        """Refuses keys that stand twice."""

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
