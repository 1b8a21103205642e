"""SuperNodes that ask often, and client apps that stay loaded. All that the test bed uses of flwr's inside is here.

Flower starts a process a message, which loads torch anew: some three seconds of a core, where a phone at twenty times
its speed takes one. Its SuperNodes also ask for messages every three seconds, which would be a minute of a phone's
time. So a phone here is two processes that were forked when all was loaded: Flower's own SuperNode with `--isolation
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
from fedbalancer.paper.testbed.wakeups import WakeupPipe, wake

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
        f"the test bed needs flwr 1.41, whose inside it uses ({error}); install it: pip install 'flwr==1.41.*'"
    ) from error

ASK_S, LOOK_S = 10.0, 0.05
"""How often a SuperNode that nobody wakes asks the SuperLink for a message, and how often it looks whether its app has
answered one."""

_log = logging.getLogger("flwr.fedbalancer")


def supernode(superlink: str, port: int, config: str, wake_runner: int, own_pipe: Path, server_pipe: Path) -> None:
    """Be a SuperNode until the end. `wake_runner` is written to when there is a message for the runner, `own_pipe`
    wakes us when there may be one for us, and we wake the server at its pipe when it has been answered."""
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
    """Answer the messages of a SuperNode, one after the other, until it is gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    address = f"127.0.0.1:{port}"
    with _client(address) as client:
        while os.read(wake, 1):
            task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if task.HasField("task") and task.token:
                # flwr ends a task that nobody waits for any more by an interrupt of this process.
                with suppress(KeyboardInterrupt):
                    _answer(address, task.token, app)


def _then(work: Callable[..., Any], do: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function, and then something more with its result."""

    def done(*args: Any, **options: Any) -> Any:
        result = work(*args, **options)
        do(result)
        return result

    return done


def _answer(address: str, token: str, app: ClientApp) -> None:
    """One message: pull it, let the app answer, push the answer."""
    with _client(address, token) as client:
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        context: Context | None = None
        status, details = SubStatus.COMPLETED, ""
        try:
            message, context, _, _ = pull_task_input(client)
            reply, details = _replied(app, message, context)
            status = SubStatus.FAILED if details else SubStatus.COMPLETED
            push_message(client, reply, context)
        except Exception as error:  # the next message may do better
            _log.exception("a message could not be answered")
            status, details = SubStatus.FAILED, repr(error)
        finally:
            push_task_output(client, context, status, details)
            heartbeat.stop()


def _replied(app: ClientApp, message: Message, context: Context) -> tuple[Message, str]:
    """The app's reply, or one that says how it failed."""
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
