"""SuperNodes that poll when woken, and client apps that stay loaded. Only this module uses flwr's private names.

Flower starts one process per message, which imports torch each time: about three seconds of a core, where a phone at 20
times its speed takes one. Its SuperNodes poll for messages every three seconds, which is a minute of a phone's time. A
phone here is therefore two processes, forked after everything was loaded: Flower's own SuperNode with `--isolation
process` and a shorter sleep, and a runner that does for every message what `flwr-clientapp` does for one.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedbalancer.core.errors import MissingData
from fedbalancer.flower.compat import ClientApp, Context, Error, Message
from fedbalancer.paper.testbed.clock import WakeupPipe, wake

try:
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode import start_client_internal as inside
    from flwr.supernode.cli.flower_supernode import flower_supernode
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output
except ImportError as error:
    raise MissingData(
        f"the test bed needs flwr 1.41, whose private names it uses ({error}); install it: pip install 'flwr==1.41.*'"
    ) from error

ASK_S, LOOK_S = 10.0, 0.05
"""Seconds between two polls of a SuperNode that is not woken, and between two checks for its app's reply."""

_log = logging.getLogger("flwr.fedbalancer")


def supernode(superlink: str, port: int, config: str, wake_runner: int, own_pipe: Path, server_pipe: Path) -> None:
    """Run a SuperNode until the process ends.

    Args:
        superlink: Address of the SuperLink.
        port: Port for the runner.
        config: Node configuration.
        wake_runner: File descriptor that receives a byte per message for the runner.
        own_pipe: Pipe that wakes this SuperNode.
        server_pipe: Pipe that wakes the server after a reply.
    """
    own = WakeupPipe(own_pipe)

    def sleep(seconds: float) -> None:
        own.wait(ASK_S) if seconds >= 1 else time.sleep(LOOK_S)

    pull, push = inside._pull_and_store_message, inside._push_messages
    vars(inside).update(
        time=SimpleNamespace(sleep=sleep),
        _pull_and_store_message=_then(pull, lambda run: run is not None and os.write(wake_runner, b"m")),
        _push_messages=_then(push, lambda _: wake(server_pipe)),
    )
    sys.argv = [
        "flower-supernode", "--insecure", "--superlink", superlink, "--isolation", "process",
        "--host", "127.0.0.1", "--port", str(port), "--node-config", config,
    ]  # fmt: skip
    flower_supernode()


def runner(port: int, app: ClientApp, wake: int) -> None:
    """Answer the messages of a SuperNode one by one until it ends.

    Args:
        port: Port of the SuperNode.
        app: The loaded client app.
        wake: File descriptor that receives a byte per message.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    address = f"127.0.0.1:{port}"
    with _client(address) as client:
        while os.read(wake, 1):
            task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if task.HasField("task") and task.token:
                # flwr interrupts this process to end a task that has expired.
                with suppress(KeyboardInterrupt):
                    _answer(address, task.token, app)


def _then(work: Callable[..., Any], do: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return `work`, extended by a call of `do` with its result."""

    def done(*args: Any, **options: Any) -> Any:
        result = work(*args, **options)
        do(result)
        return result

    return done


def _answer(address: str, token: str, app: ClientApp) -> None:
    """Pull one message, run the app and push its reply."""
    with _client(address, token) as client:
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        context: Context | None = None
        status, details = SubStatus.COMPLETED, ""
        try:
            message, context, _, _ = pull_task_input(client)
            reply, details = _reply(app, message, context)
            status = SubStatus.FAILED if details else SubStatus.COMPLETED
            push_message(client, reply, context)
        except Exception as error:  # the next message may succeed
            _log.exception("a message could not be answered")
            status, details = SubStatus.FAILED, repr(error)
        finally:
            push_task_output(client, context, status, details)
            heartbeat.stop()


def _reply(app: ClientApp, message: Message, context: Context) -> tuple[Message, str]:
    """Return the app's reply, or an error reply and its reason."""
    try:
        return app(message=message, context=context), ""
    except Exception as error:
        _log.exception("the client app failed")
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message), reason


def _client(address: str, token: str | None = None) -> RuntimeHttpClient:
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")]
    interceptors += [RuntimeTokenHttpInterceptor(token)] if token is not None else []
    return RuntimeHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, interceptors=interceptors,
        retry_invoker=make_simple_http_retry_invoker(),
    )  # fmt: skip
