"""Secure aggregation: the server opens only the sum of a round's updates and histograms.

After the round has closed, its reporters agree on masks that cancel in the sum (Bonawitz et al., "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017). The group is the round's reporters, so deadlines,
quorums and clients that fail during training need no recovery. Three more messages per client follow:

1. share: every client gets the others' keys, and shares its secrets among them;
2. mask: every client sends its masked vector, and forgets the vector;
3. open: the clients send shares of the seeds of those whose vectors arrived, and of the keys of those that are gone.

Key agreement, sealing and secret sharing are those of `cryptography` and of Flower's SecAgg+. Masks are AES-256 in
counter mode: Flower's own generator has a seed of 32 bits (docs/explanation/privacy.md).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FloatArray, Weights
from fedbalancer.flower.compat import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    RecordDict,
    combine_shares,
    create_shares,
)
from fedbalancer.flower.messages import FEDBALANCER, VERSION, Instruction, check_version
from fedbalancer.flower.model_arrays import InvalidMessage, read_array

SUM_ACTION = "fedbalancer_sum"
SUM = f"query.{SUM_ACTION}"
KEYS, STATE, MASKED = "fedbalancer.keys", "fedbalancer.sum", "fedbalancer.masked"
"""Records with a client's public keys and with what it keeps between messages, and the array of a masked vector."""
SUMS_ONLY = "FEDBALANCER_SUMS_ONLY"
"""Environment variable of a client: if it is 1, the client never sends an update that is not masked."""
WORDS = np.dtype(np.uint32)
LEAST_CLIENTS = 3
"""A sum of two reveals each one's update to the other."""
KEY_BYTES, SHARE_BYTES = 32, 52
SOON_S = 10.0

Words = NDArray[np.uint32]
Ask = Callable[[str, Mapping[str, RecordDict]], dict[str, RecordDict]]
"""(stage, request by client) -> the replies that arrived."""


class SumFailed(Exception):
    """A sum cannot be opened; the text says why."""


@dataclass(frozen=True)
class SecureAggregation:
    """Settings of secure aggregation.

    Args:
        least: Fewest clients whose sum is opened, at least 3.
        threshold: Share of a sum's clients that must help to open it, at least one half.
        clip: Largest change of one parameter by one client. Larger ones are cut.
        wait_s: Longest wait for the replies of one message, in seconds.

    Raises:
        BadSetting: A value is out of range.
    """

    least: int = LEAST_CLIENTS
    threshold: float = 2 / 3
    clip: float = 8.0
    wait_s: float = 120.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.least >= LEAST_CLIENTS:
            raise BadSetting(f"secure_aggregation: least = {self.least} must be at least {LEAST_CLIENTS} clients")
        if not 0.5 <= self.threshold <= 1:
            raise BadSetting(f"secure_aggregation: threshold = {self.threshold:g} must be from 0.5 to 1")
        if not (0 < self.clip < math.inf and 0 < self.wait_s < math.inf):
            raise BadSetting(f"secure_aggregation: clip = {self.clip:g} and wait_s = {self.wait_s:g} must be over 0")

    def needed(self, clients: int, least: int = 0) -> int:
        """Return how many of the clients must help to open their sum.

        Args:
            clients: Number of clients.
            least: Fewest clients that the method's summary allows.
        """
        return max(self.least, least, math.ceil(self.threshold * clients - 1e-9), clients // 2 + 1)

    def bits(self, clients: int) -> int:
        """Return the fractional bits of a parameter, with which the sum over the clients fits into 31 bits.

        Args:
            clients: Largest number of clients.

        Example:
            >>> SecureAggregation().bits(5), SecureAggregation().bits(100)
            (24, 20)
        """
        return 30 - math.ceil(math.log2(self.clip * clients))


# Cryptography: X25519, HKDF with SHA-256, ChaCha20-Poly1305, AES-256 in counter mode.


def new_key() -> bytes:
    """Return a random secret key."""
    return os.urandom(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def shared_key(secret: bytes, public: bytes, purpose: str) -> bytes:
    """Return the key that two clients share for one purpose.

    Args:
        secret: The own secret key.
        public: The other's public key.
        purpose: Name of run, round and use, so that no key is used twice.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    agreed = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(agreed)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt a text under a key that is used once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Decrypt and verify a text."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)


def mask_of(key: bytes, count: int) -> Words:
    """Return `count` pseudo-random words.

    Args:
        key: The seed, 32 bytes.
        count: Number of words.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(4 * count))
    return np.frombuffer(stream, dtype="<u4").astype(WORDS)


def encode_vector(update: Weights, counts: Sequence[float], bits: int, clip: float) -> Words:
    """Return the words that a client adds to the sum: 1, its update in fixed point, and its counts.

    Args:
        update: The update.
        counts: Whole numbers of the summary.
        bits: Fractional bits.
        clip: Largest change of one parameter.

    Example:
        >>> words = encode_vector(np.array([0.5, -9.0], dtype=np.float32), [3.0], bits=4, clip=8.0)
        >>> decode_sum(words, 2, bits=4)
        (1, array([ 0.5, -8. ]), (3.0,))
    """
    fixed = np.rint(np.clip(update.astype(np.float64), -clip, clip) * 2.0**bits)
    whole = np.concatenate([[1.0], fixed, np.asarray(counts, dtype=np.float64)])
    return whole.astype(np.int64).astype(WORDS)


def decode_sum(words: Words, parameters: int, bits: int) -> tuple[int, FloatArray, tuple[float, ...]]:
    """Return the number of clients, the sum of updates and the sum of counts.

    Args:
        words: The opened sum.
        parameters: Number of parameters.
        bits: Fractional bits.
    """
    signed = words.view(np.int32)
    update = signed[1 : 1 + parameters].astype(np.float64) * 2.0**-bits
    return int(signed[0]), update, tuple(signed[1 + parameters :].astype(float).tolist())


# The client


def hold_update(context: Context, instruction: Instruction, update: Weights, counts: Sequence[float]) -> ConfigRecord:
    """Keep an update on the client until the round's sum, and return the public keys to send instead.

    Args:
        context: Flower's context of the node.
        instruction: The server's instruction.
        update: The update.
        counts: Numbers of the summary, which are added as well.
    """
    words = encode_vector(update, counts, instruction.sum_bits, instruction.sum_clip)
    mask_key, seal_key = new_key(), new_key()
    context.state[STATE] = ConfigRecord({
        "stage": "held", "run-key": instruction.run_key, "round": instruction.order.round, "client": instruction.client,
        "words": words.tobytes(), "mask-key": mask_key, "seal-key": seal_key,
    })  # fmt: skip
    return ConfigRecord({"mask": public_key(mask_key), "seal": public_key(seal_key)})


def has_summed(context: Context, instruction: Instruction) -> bool:
    """Whether the client has already sent a masked vector of this round, before the server was started again.

    Two sums of one round could reveal their difference, so the client takes part in one only.
    """
    state: Mapping[str, Any] = context.state.config_records.get(STATE, {})
    same = state.get("run-key") == instruction.run_key and state.get("round") == instruction.order.round
    return same and state.get("stage") in ("masked", "opened")


def answer_sum(message: Message, context: Context) -> Message:
    """Answer a message of a sum.

    Args:
        message: The server's message.
        context: Flower's context of the node.

    Raises:
        BadSetting: The message is not the next one of a sum that this client takes part in, or is not safe to answer.
    """
    request = message.content.config_records[FEDBALANCER]
    check_version(request)
    state: dict[str, Any] = dict(context.state.config_records.get(STATE, {}))
    same = (state.get("run-key"), state.get("round")) == (request.get("run-key"), request.get("round"))
    stage = request.get("stage")
    before = {"share": "held", "mask": "shared", "open": "masked"}
    if not isinstance(stage, str) or not same or before.get(stage) != state.get("stage"):
        raise BadSetting(f"stage {stage!r} of a sum does not follow {state.get('stage')!r} on this client")
    answers = {"share": _share, "mask": _mask, "open": _open}
    content = answers[stage](state, dict(request))
    context.state[STATE] = ConfigRecord(state)
    return Message(content, reply_to=message)


def _share(state: dict[str, Any], request: Mapping[str, Any]) -> RecordDict:
    """Share the seed of the own mask and the key of the pairwise masks among all clients of the sum."""
    clients, needed = list(request["clients"]), int(request["needed"])
    mask_keys, seal_keys = list(request["mask-keys"]), list(request["seal-keys"])
    me, count = state["client"], len(clients)
    if not (count == len(mask_keys) == len(seal_keys) and clients == sorted(set(clients)) and me in clients):
        raise BadSetting("the clients of a sum are not a sorted list with this client")
    if not (LEAST_CLIENTS <= needed <= count and 2 * needed > count):
        raise BadSetting(f"a sum of {count} clients that {needed} could open is not safe")
    place = clients.index(me)
    if (mask_keys[place], seal_keys[place]) != tuple(map(public_key, (state["mask-key"], state["seal-key"]))):
        raise BadSetting("the keys of this client were replaced")
    if len({*mask_keys, *seal_keys}) != 2 * count:
        raise BadSetting("two clients of a sum have the same key")
    seed = new_key()
    shares = [create_shares(secret, needed, count) for secret in (seed, state["mask-key"])]
    sealed, own = [], b""
    for other, seal_key, *pair in zip(clients, seal_keys, *shares, strict=True):
        text = b"".join(pair)
        if other == me:
            own = text
        key = b"" if other == me else shared_key(state["seal-key"], seal_key, _purpose(state, f"{me}>{other}"))
        sealed.append(seal(key, text) if key else b"")
    state |= {
        "stage": "shared", "clients": clients, "mask-keys": mask_keys, "seal-keys": seal_keys, "needed": needed,
        "seed": seed, "own": own,
    }  # fmt: skip
    return _record({"sealed": sealed, "seed-hash": hashlib.sha256(seed).digest()})


def _mask(state: dict[str, Any], request: Mapping[str, Any]) -> RecordDict:
    """Return the masked vector, and forget the vector."""
    group, sealed, me = list(request["group"]), list(request["sealed"]), state["client"]
    keys = dict(zip(state["clients"], zip(state["mask-keys"], state["seal-keys"], strict=True), strict=True))
    if not (
        len(group) == len(set(group)) == len(sealed) >= state["needed"] and me in group and set(group) <= set(keys)
    ):
        raise BadSetting(f"a sum of {len(group)} clients, of which {state['needed']} are needed")
    words = np.frombuffer(state["words"], dtype=WORDS)
    total, shares = words + mask_of(state["seed"], len(words)), []
    for other, text in zip(group, sealed, strict=True):
        if other == me:
            shares.append(state["own"])
            continue
        mask_key, seal_key = keys[other]
        opened = unseal(shared_key(state["seal-key"], seal_key, _purpose(state, f"{other}>{me}")), text)
        shares.append(opened)
        pair = mask_of(shared_key(state["mask-key"], mask_key, pair_purpose(state, me, other)), len(words))
        total = total + pair if me > other else total - pair
    for used in ("words", "mask-key", "seal-key", "seed", "own", "mask-keys", "seal-keys", "clients"):
        del state[used]
    state |= {"stage": "masked", "group": group, "shares": shares}
    return RecordDict({MASKED: ArrayRecord({MASKED: Array(total)}), FEDBALANCER: ConfigRecord({"version": VERSION})})


def _open(state: dict[str, Any], request: Mapping[str, Any]) -> RecordDict:
    """Return a share of the seed of every client whose vector arrived, and of the key of every other: never both."""
    arrived, group = set(request["arrived"]), state["group"]
    if not (arrived <= set(group) and len(arrived) >= state["needed"]):
        raise BadSetting(f"a sum of {len(arrived)} clients, of which {state['needed']} are needed")
    pairs = [(text[:SHARE_BYTES], text[SHARE_BYTES:]) for text in state["shares"]]
    shares = [pair[0] if client in arrived else pair[1] for client, pair in zip(group, pairs, strict=True)]
    del state["shares"], state["group"]
    state["stage"] = "opened"
    return _record({"shares": shares})


def _record(values: Mapping[str, Any]) -> RecordDict:
    return RecordDict({FEDBALANCER: ConfigRecord({"version": VERSION, **values})})


def _purpose(state: Mapping[str, Any], use: str) -> str:
    return f"fedbalancer {state['run-key']} {state['round']} {use}"


def pair_purpose(state: Mapping[str, Any], one: str, other: str) -> str:
    """Return the purpose of the mask of a pair, the same for both of them.

    Args:
        state: With the keys "run-key" and "round".
        one: Id of a client.
        other: Id of another.
    """
    return _purpose(state, "+".join(sorted((one, other))))


# The server


def open_sum(
    keys: Mapping[str, tuple[bytes, bytes]], needed: int, run_key: str, round_number: int, length: int, ask: Ask
) -> tuple[Words, tuple[str, ...]]:
    """Open the sum of the clients' vectors.

    Args:
        keys: Public keys of the clients: for masks, and for sealing.
        needed: Number of clients that must help.
        run_key: Name of the run.
        round_number: The round.
        length: Words of a vector.
        ask: Sends requests and returns the replies that arrived.

    Returns:
        The sum, and the clients that are in it.

    Raises:
        SumFailed: Too few clients answered, or the sum is not one of these clients.
    """
    clients, label = sorted(keys), {"run-key": run_key, "round": round_number}
    if len(clients) < needed:
        raise SumFailed(f"{len(clients)} clients have reported, and {needed} are needed")

    def request(stage: str, **values: Any) -> RecordDict:
        return _record({**label, "stage": stage, **values})

    mask_keys, seal_keys = ([keys[client][place] for client in clients] for place in (0, 1))
    sharing = request("share", clients=clients, needed=needed, **{"mask-keys": mask_keys, "seal-keys": seal_keys})
    shared = _valid(ask("share", dict.fromkeys(clients, sharing)), lambda content: _read_shares(content, len(clients)))
    group = sorted(shared)
    _check_enough(group, needed, "shared their keys")
    at = {client: clients.index(client) for client in group}
    masking = {
        client: request("mask", group=group, sealed=[shared[source][0][at[client]] for source in group])
        for client in group
    }
    masked = _valid(ask("mask", masking), lambda content: _read_masked(content, length))
    arrived = sorted(masked)
    _check_enough(arrived, needed, "sent their vectors")
    opening = request("open", arrived=arrived)
    opened = _valid(ask("open", dict.fromkeys(arrived, opening)), lambda content: _read_texts(content, "shares", group))
    _check_enough(opened, needed, "helped to open the sum")
    total = np.zeros(length, dtype=WORDS)
    for client in arrived:
        total += masked[client]
    helpers = sorted(opened)[:needed]
    for place, client in enumerate(group):
        secret = _combine([opened[helper][place] for helper in helpers], client)
        if client in masked:
            if hashlib.sha256(secret).digest() != shared[client][1]:
                raise SumFailed(f"the shares of client {client!r} do not give its seed")
            total -= mask_of(secret, length)
            continue
        if public_key(secret) != keys[client][0]:
            raise SumFailed(f"the shares of client {client!r} do not give its key")
        for other in arrived:
            pair = mask_of(shared_key(secret, keys[other][0], pair_purpose(label, client, other)), length)
            total = total - pair if other > client else total + pair
    if total[0] != len(arrived):
        raise SumFailed("the sum is not that of its clients: a vector or a share was wrong")
    return total, tuple(arrived)


def _check_enough(clients: Any, needed: int, what: str) -> None:
    if len(clients) < needed:
        raise SumFailed(f"{len(clients)} clients {what}, and {needed} are needed")


def _valid(replies: Mapping[str, RecordDict], read: Callable[[RecordDict], Any]) -> dict[str, Any]:
    """Return what the replies contain. A client with an invalid reply counts as gone."""
    found = {}
    for client, content in replies.items():
        try:
            found[client] = read(content)
        except (InvalidMessage, KeyError, TypeError, ValueError):
            continue
    return found


def _read_texts(content: RecordDict, name: str, clients: Sequence[str]) -> list[bytes]:
    texts: Any = content.config_records[FEDBALANCER][name]
    if not isinstance(texts, list) or len(texts) != len(clients) or not all(isinstance(text, bytes) for text in texts):
        raise InvalidMessage(f"no text for each of {len(clients)} clients")
    return texts


def _read_shares(content: RecordDict, clients: int) -> tuple[list[bytes], bytes]:
    digest = content.config_records[FEDBALANCER]["seed-hash"]
    if not isinstance(digest, bytes):
        raise InvalidMessage("no hash of a seed")
    return _read_texts(content, "sealed", range(clients)), digest  # type: ignore[arg-type]


def _read_masked(content: RecordDict, length: int) -> Words:
    return read_array(MASKED, content.array_records[MASKED][MASKED], (length,), WORDS)


def _combine(shares: list[bytes], client: str) -> bytes:
    try:
        return combine_shares(shares)
    except Exception as error:  # a share may be anything
        raise SumFailed(f"the shares of client {client!r} do not fit together") from error


def read_keys(content: RecordDict) -> tuple[bytes, bytes]:
    """Return the public keys in a report.

    Raises:
        InvalidMessage: There are none.
    """
    record: Mapping[str, Any] = content.config_records.get(KEYS, {})
    mask, sealing = record.get("mask"), record.get("seal")
    if not all(isinstance(key, bytes) and len(key) == KEY_BYTES for key in (mask, sealing)):
        raise InvalidMessage("no keys for the sum")
    return bytes(mask), bytes(sealing)  # type: ignore[arg-type]
