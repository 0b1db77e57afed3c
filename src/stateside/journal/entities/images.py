"""Images: the states of the entities that were asked last, in memory. A bound holds; the least recently used goes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic

from stateside.journal.entities.entity import State


@dataclass(frozen=True, slots=True)
class Image(Generic[State]):
    """An entity's state as of one of its events: the fold of all events up to there.

    `last_id` is that event's id; by it a log that was cut and went on otherwise is told. `kept` is the sequence of the
    newest snapshot that is known of.
    """

    state: State
    sequence: int = 0
    last_id: str | None = None
    kept: int = 0


class Images(Generic[State]):
    """Images by entity, so many at most. For any number of threads."""

    def __init__(self, images_max: int) -> None:
        self._images_max = images_max
        self._images: OrderedDict[str, Image[State]] = OrderedDict()
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, entity: str) -> Image[State] | None:
        """The entity's image, if it is there. It was used now."""
        with self._changing:
            image = self._images.get(entity)
            if image is not None:
                self._images.move_to_end(entity)
            return image

    def put(self, entity: str, image: Image[State]) -> None:
        """Have this image of the entity. It was used now."""
        with self._changing:
            self._images[entity] = image
            self._images.move_to_end(entity)
            while len(self._images) > self._images_max:
                self._images.popitem(last=False)
