"""The one place that reads environment variables."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, Json, JsonValue, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from durable.errors import ConfigurationError

_URL = re.compile(r"https://.+|http://(127\.0\.0\.1|localhost)[:/].*")
_TOPIC = re.compile(r"arn:[^:]+:sns:[^:]*:[^:]*:([^:]+)")


class Settings(BaseModel):
    """How this deployment is set up; each field is an environment variable that `template.yaml` sets.

    `fallback_models` are model strings with commas between them. A key comes from Secrets Manager (`api_key_secret`) or
    from Parameter Store (`api_key_parameter`), by the name there; on a machine of one's own, from its variable.
    `model_options` is a JSON object of more fields for each request to the first model.
    Messages to people go to `topic_arn` and to `webhook_url`, signed with the secret that is named `webhook_secret`.
    The levels of an escalation name topics of `escalation_topics` (ARNs, with commas between them; a topic's name is
    the ARN's last part) and `escalation_webhooks` (`name=URL`, with commas, signed with the same secret).
    A slice that fails because a provider or a store is out of reach is tried again for `outage_hours`. The events of
    runs go to the EventBridge bus `event_bus` (empty: nowhere). Logs and metrics carry `service_name`.
    `trusted_callers` are principals, with commas between them, whose `Durable-Principal` header names the user that
    they act for. `approvers` are the principals, with commas between them, who decide about tools that name nobody.
    `state_machine_arn` and `topic_arn` are empty in functions that need neither. Times are in seconds,
    `ttl_days` is how long a session lives after its newest save (0: for ever). `list_finished`: whether finished
    sessions are listed.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    table_name: str
    table_prefix: str = ""
    agent_module: str = "agent"
    model: str = ""
    fallback_models: str = ""
    model_options: Json[dict[str, JsonValue]] = Field(default_factory=dict[str, JsonValue])
    openai_base_url: str = ""
    openai_api_key: str = Field(default="", repr=False)
    anthropic_base_url: str = ""
    anthropic_api_key: str = Field(default="", repr=False)
    api_key_secret: str = ""
    api_key_parameter: str = ""
    state_machine_arn: str = ""
    topic_arn: str = ""
    event_bus: str = ""
    outage_hours: float = Field(default=6.0, ge=0, le=72)
    public_url: str = ""
    webhook_url: str = Field(default="", pattern=r"^$|^https://|^http://(127\.0\.0\.1|localhost)[:/]")
    webhook_secret: str = ""
    escalation_topics: str = ""
    escalation_webhooks: str = ""
    separate_approvers: bool = False
    trusted_callers: str = ""
    approvers: str = ""
    ttl_days: int = Field(default=30, ge=0)
    list_finished: bool = True
    slice_seconds: float = Field(default=900.0, gt=0)
    min_model_seconds: float = Field(default=15.0, gt=0)
    service_name: str = "durable-agents"
    log_level: str = "INFO"

    @model_validator(mode="after")
    def _webhook_is_signed(self) -> "Settings":
        if self.webhook_url and not self.webhook_secret:
            raise PydanticCustomError("webhook", "WEBHOOK_URL needs WEBHOOK_SECRET, the name of the secret that signs")
        return self

    @model_validator(mode="after")
    def _channels_are_right(self) -> "Settings":
        named = self._named_channels
        right = [name for name, address in named if _TOPIC.fullmatch(address) or _URL.fullmatch(address)]
        if wrong := sorted({name for name, _ in named} - set(right)):
            places = "ESCALATION_TOPICS takes ARNs of SNS topics, ESCALATION_WEBHOOKS name=https://…"
            raise PydanticCustomError("channels", "{places}; not right: {wrong}", {"places": places, "wrong": wrong})
        if len(self.channels) < len(named):
            raise PydanticCustomError("channels", "two channels of the escalation have one name")
        if self.escalation_webhooks and not self.webhook_secret:
            raise PydanticCustomError("webhook", "ESCALATION_WEBHOOKS needs WEBHOOK_SECRET, the secret that signs")
        return self

    @property
    def channels(self) -> dict[str, str]:
        """Whom the levels of an escalation can name: the ARN of a topic, or the URL of a webhook."""
        return dict(self._named_channels)

    @property
    def _named_channels(self) -> list[tuple[str, str]]:
        topics = [(one.rpartition(":")[2], one) for one in _listed(self.escalation_topics)]
        webhooks = [one.partition("=")[::2] for one in _listed(self.escalation_webhooks)]
        return [*topics, *((name.strip(), url.strip()) for name, url in webhooks)]

    @property
    def models(self) -> list[str]:
        """The model strings, the first one's fallbacks behind it."""
        return _listed(f"{self.model},{self.fallback_models}")

    @property
    def approver_names(self) -> list[str]:
        return [name.strip() for name in self.approvers.split(",") if name.strip()]

    @property
    def ttl(self) -> timedelta | None:
        return timedelta(days=self.ttl_days) if self.ttl_days else None


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def read(environment: Mapping[str, str]) -> Settings:
    """Make the settings of an environment. Raises `ConfigurationError` that names what is missing or wrong."""
    given: dict[str, Any] = {
        name: environment[name.upper()] for name in Settings.model_fields if environment.get(name.upper())
    }
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        wrong = "; ".join(
            ": ".join([*(str(part).upper() for part in issue["loc"][:1]), issue["msg"]]) for issue in error.errors()
        )
        raise ConfigurationError(f"The function's environment is not right: {wrong}.") from None


@cache
def settings() -> Settings:
    """The settings of this function, read once."""
    return read(os.environ)
