"""A SuperLink in memory behind Flower's own `HttpGrid`: what nodes upload is bytes, as over the network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from flower.fakegrid import Clock, Node
from flower.phones import Phone, World
from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesRequest,
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from fedbalancer.flower.messages import TRAIN

Upload = tuple[Any, ObjectTree, dict[str, bytes]]
"""What the SuperLink stores of a message: its metadata, its tree of objects, and their bytes."""
DIVIDER = b"\x00"
"""Between the head of an object and its body."""
PART_BYTES = 2**16
Tamper = Callable[[Upload], Upload]


def uploaded(message: Message) -> Upload:
    """The upload of an honest node."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {identity: made.deflate() for identity, made in get_all_nested_objects(message).items()}
    bare = message_to_proto(message)
    bare.ClearField("content")
    return bare, get_object_tree(message), contents


def with_length(head: bytes, body: bytes) -> bytes:
    """An object of the kind and children that a head has, with a body of its own."""
    return head.rpartition(b" ")[0] + b" " + str(len(body)).encode() + DIVIDER + body


def replaced(upload: Upload, changes: dict[str, bytes]) -> Upload:
    """An upload with other contents for these objects, and ids that fit: the SuperLink checks those."""
    proto, tree, contents = upload
    new: dict[str, bytes] = {}

    def made(node: ObjectTree) -> ObjectTree:
        children = [made(child) for child in node.children]
        content = changes.get(node.object_id, contents[node.object_id])
        for before, after in zip(node.children, children, strict=True):
            content = content.replace(before.object_id.encode(), after.object_id.encode())
        identity = get_object_id(content)
        new[identity] = content
        return ObjectTree(object_id=identity, children=children)

    tree = made(tree)
    proto.metadata.message_id = tree.object_id
    return proto, tree, new


class Link:
    """Nodes that answer at once or later, as in `FakeGrid`. `tamper` is what a node does to the bytes of a reply."""

    def __init__(self, clock: Clock, nodes: dict[int, Node], tamper: dict[int, Tamper] | None = None) -> None:
        self.clock, self.nodes, self.tamper = clock, nodes, tamper or {}
        self.objects: dict[str, bytes] = {}
        self.waiting: list[Any] = []
        self.replies: list[tuple[float, str, Upload]] = []
        self.asked: list[str] = []
        self.failures: dict[str, int] = {}
        self.served_bytes = self.unstored = 0
        self._lock = threading.Lock()
        self.grid = HttpGrid("link", insecure=True, token="t")
        self.grid.set_run(Run.create_empty(1))
        self.grid._runtime_client._client = httpx.Client(transport=httpx.MockTransport(self._serve))

    def _serve(self, request: httpx.Request) -> httpx.Response:
        kind, answer = {
            "get-nodes": (GetNodesRequest, self._get_nodes),
            "push-messages": (PushAppMessagesRequest, self._push_messages),
            "push-object": (PushObjectRequest, self._push_object),
            "pull-messages": (PullAppMessagesRequest, self._pull_messages),
            "pull-object": (PullObjectRequest, self._pull_object),
            "confirm-message-received": (ConfirmMessageReceivedRequest, self._confirm),
        }[name := request.url.path.rpartition("/")[2]]
        with self._lock:
            self.asked.append(name)
            if self.failures.get(name, 0) > 0:
                self.failures[name] -= 1
                return httpx.Response(500)
            return httpx.Response(200, content=self._parts(answer(kind.FromString(request.content))))

    def _parts(self, answer: Any) -> Iterator[bytes]:
        content = answer.SerializeToString()
        for start in range(0, len(content), PART_BYTES):
            part = content[start : start + PART_BYTES]
            self.served_bytes += len(part)
            yield part

    def _get_nodes(self, request: Any) -> Any:
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in self.nodes])

    def _push_messages(self, request: Any) -> Any:
        self.waiting += zip(request.messages_list, request.message_object_trees, strict=True)
        wanted = [one.object_id for tree in request.message_object_trees for one in iterate_object_tree(tree)]
        ids = [message.metadata.message_id for message in request.messages_list]
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=dict.fromkeys(wanted))

    def _push_object(self, request: Any) -> Any:
        if self.unstored > 0:
            self.unstored -= 1
            return PushObjectResponse(stored=False)
        self.objects[request.object_id] = request.object_content
        for one in list(self.waiting):
            ids = [tree.object_id for tree in iterate_object_tree(one[1])]
            if all(identity in self.objects for identity in ids):
                self.waiting.remove(one)
                self._deliver(one[0], {identity: self.objects[identity] for identity in ids})
        return PushObjectResponse(stored=True)

    def _deliver(self, proto: Any, contents: dict[str, bytes]) -> None:
        identity, node = proto.metadata.message_id, proto.metadata.dst_node_id
        message: Any = inflate_object_from_contents(identity, contents)
        message.metadata.__dict__["_message_id"] = identity
        for ready_s, reply in self.nodes[node](message, self.clock.now):
            upload = uploaded(reply)
            if reply.metadata.message_type == TRAIN and node in self.tamper:
                upload = self.tamper[node](upload)
            self.replies.append((ready_s, identity, upload))
            self.objects |= upload[2]
            self.clock.events.append(ready_s)

    def _pull_messages(self, request: Any) -> Any:
        ready = [one for one in self.replies if one[0] <= self.clock.now and one[1] in request.message_ids]
        self.replies = [one for one in self.replies if not any(one is other for other in ready)]
        protos, trees = [one[2][0] for one in ready], [one[2][1] for one in ready]
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def _pull_object(self, request: Any) -> Any:
        content = self.objects.get(request.object_id)
        found = content is not None
        return PullObjectResponse(object_found=found, object_available=bool(content), object_content=content or b"")

    def _confirm(self, request: Any) -> Any:
        self.objects.pop(request.message_object_id, None)
        return ConfirmMessageReceivedResponse()


class LinkedWorld(World):
    """Phones behind a SuperLink in memory; `tampers` are what the phones, by number, do to the bytes of their replies
    to train messages."""

    def __init__(self, *phones: Phone, tampers: dict[int, Tamper] | None = None) -> None:
        super().__init__(*phones)
        given = {number + 2: tamper for number, tamper in (tampers or {}).items()}
        self.link = Link(self.clock, self.grid.nodes, given)
        self.grid = self.link.grid
