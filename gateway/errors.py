"""
The error tree. Every error this project raises on purpose derives from `GatewayError`.

    GatewayError
      ConfigurationError        the configuration file or the command line is wrong            exit 2
        UnknownKeyError         ... with a key nobody reads
        ConfigurationProblems   ... in one or more places, all of them listed
      EnvironmentProblem        this machine lacks something; `fix` is the command that mends it   exit 3
        EngineUnavailable       the engine environment is missing, broken or cannot be built
        ModelUnavailable        the model's files are missing or cannot be prepared
      PortInUse                 something else listens where we should                         exit 4
      AlreadyRunning            another supervisor holds the state directory                   exit 5
      WorkerStartError          a worker could not be started; `permanent` tells if trying again is futile   exit 6
      ControlUnavailable        no supervisor answers on the control socket                    exit 7
      Interrupted               Ctrl-C or SIGTERM before anything served                       exit 130
      RequestError              the client's request cannot be served; carries status, type, code, param
        Rejected                ... because of load: a limit that it would have passed; carries the reason
      UpstreamError             a worker failed an exchange; carries the outcome it is counted as
        UpstreamConnectError
        UpstreamTimeout
        UpstreamProtocolError
        UpstreamIncomplete

A message says what was expected, what was found, and which key or command mends it.
"""

from __future__ import annotations

from collections.abc import Sequence


class GatewayError(Exception):
    """Root of the tree. `exit_code` is what the command line ends with when it reaches the top."""

    exit_code = 1


class ConfigurationError(GatewayError):
    """
    The configuration file or the command line is wrong.

    Args:
        message: One sentence, with the offending value.
        key: Dotted path of the key, such as `models.llama.replicas`; "" for the file as a whole.
        line: 1-based line in the file, None if unknown.
        file: The file as the operator named it, None when there is none.
    """

    exit_code = 2

    def __init__(self, message: str, *, key: str = "", line: int | None = None, file: str | None = None) -> None:
        self.message = message
        self.key = key
        self.line = line
        self.file = file
        where = ":".join(str(part) for part in (file, line) if part is not None)
        super().__init__(": ".join(part for part in (where, key, message) if part))


class UnknownKeyError(ConfigurationError):
    """A key nobody reads; the message names the nearest known one."""


class ConfigurationProblems(ConfigurationError):
    """
    Everything that is wrong with a configuration, in the order of its lines; the text has one line for each.

    Args:
        problems: At least one.
    """

    def __init__(self, problems: Sequence[ConfigurationError]) -> None:
        first = problems[0]
        super().__init__(first.message, key=first.key, line=first.line, file=first.file)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class EnvironmentProblem(GatewayError):
    """
    This machine lacks something we need.

    Args:
        message: What was expected and what was found.
        fix: The command (or the configuration key) that mends it; "" when there is none.
    """

    exit_code = 3

    def __init__(self, message: str, *, fix: str = "") -> None:
        self.message = message
        self.fix = fix
        super().__init__(f"{message}. To mend it: {fix}" if fix else message)


class EngineUnavailable(EnvironmentProblem):
    """The engine environment is missing, broken or cannot be built."""


class ModelUnavailable(EnvironmentProblem):
    """The model's files are missing or cannot be prepared."""


class PortInUse(EnvironmentProblem):
    """Something else already listens on the address."""

    exit_code = 4


class AlreadyRunning(EnvironmentProblem):
    """Another supervisor holds the state directory."""

    exit_code = 5


class WorkerStartError(EnvironmentProblem):
    """
    A worker could not be started.

    Args:
        permanent: True when starting it again without a change cannot succeed.
    """

    exit_code = 6

    def __init__(self, message: str, *, fix: str = "", permanent: bool = False) -> None:
        self.permanent = permanent
        super().__init__(message, fix=fix)


class ControlUnavailable(EnvironmentProblem):
    """No supervisor answers on the control socket."""

    exit_code = 7


class Interrupted(GatewayError):
    """Ctrl-C or SIGTERM before anything served; the message says what the next run makes of what was begun."""

    exit_code = 130


class RequestError(GatewayError):
    """
    The client's request cannot be served.

    Args:
        status: HTTP status, 400 to 599.
        message: For the client: no address, path, key or stack trace.
        type: OpenAI error type, such as `invalid_request_error`.
        code: Machine-readable reason, such as `model_not_found`.
        param: The offending request field.
        retry_after_s: Seconds for `Retry-After`; None for no header.
        should_retry: Value of `x-should-retry`; None for no header.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        super().__init__(f"{status} {code or type}: {message}")


class Rejected(RequestError):
    """
    Load that is turned away on purpose, counted with outcome `rejected`.

    Args:
        reason: A `RejectionReason` value, the metric's label.
        (the others are `RequestError`'s)
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str,
        type: str = "server_error",
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.reason = reason
        super().__init__(status, message, type=type, code=code, retry_after_s=retry_after_s)


class UpstreamError(GatewayError):
    """A worker failed an exchange. `detail` is for our log, never for the client."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(detail)


class UpstreamConnectError(UpstreamError):
    """No connection to the worker: refused, timed out, or name not resolved. Nothing was sent."""


class UpstreamTimeout(UpstreamError):
    """A time limit passed while waiting for the worker."""


class UpstreamProtocolError(UpstreamError):
    """The worker sent something that is not HTTP/1.1, or exceeded a limit."""


class UpstreamIncomplete(UpstreamError):
    """The worker's connection or stream ended before the response was complete."""
