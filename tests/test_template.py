"""Template, state machine and code say the same: functions, variables, table, permissions, paths, outcomes."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from durable import ConfigurationError
from handlers import approvals, runs, sessions
from handlers._executions import STEP_INPUT_VERSION, execution_input
from handlers._observe import NAMESPACE
from handlers._settings import Settings
from handlers.steps import AskHuman, Outcome, ParkRun, RunSlice, TryAgain, parse
from stores.dynamodb import LISTING_INDEX, TABLE, TTL_ATTRIBUTE
from tests.support.machine import DEFINITION, Execution

ROOT = Path(__file__).parents[1]


class Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms, each as the mapping that it stands for."""


def _short_form(loader: Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    match node:
        case yaml.ScalarNode():
            return {name: loader.construct_scalar(node)}
        case yaml.SequenceNode():
            return {name: loader.construct_sequence(node, deep=True)}
        case yaml.MappingNode():
            return {name: loader.construct_mapping(node, deep=True)}
    raise AssertionError(node)


Loader.add_multi_constructor("!", _short_form)

TEMPLATE: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(), Loader)
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
FUNCTIONS = {
    resource["Properties"]["Handler"].split(".")[1]: resource["Properties"]
    for resource in RESOURCES.values()
    if resource["Type"] == "AWS::Serverless::Function"
}


# --- functions and what they are told --------------------------------------------------------------------------------


def test_each_module_of_handlers_is_a_function() -> None:
    """A file of handlers/ without underscore is one function, and no function has another handler."""
    modules = {path.stem for path in (ROOT / "handlers").glob("*.py") if not path.stem.startswith("_")}
    assert set(FUNCTIONS) == modules
    assert {function["Handler"] for function in FUNCTIONS.values()} == {f"handlers.{name}.handler" for name in modules}


ALWAYS = {"table_name", "ttl_days", "list_finished", "log_level", "service_name"} | {
    "escalation_topics",  # each function refuses to start where a tool escalates to what is not there
    "escalation_webhooks",
}
MODEL = {"model", "fallback_models", "model_options", "openai_base_url", "anthropic_base_url"}
KEYS = {"api_key_secret", "api_key_parameter"}
RUNS_THE_AGENT = MODEL | KEYS | {"min_model_seconds", "slice_seconds", "event_bus", "approvers"}
WHO = {"separate_approvers", "trusted_callers"}
NEEDS = {
    "runs": RUNS_THE_AGENT | {"state_machine_arn"} | WHO,
    "sessions": set[str](),
    "approvals": {"state_machine_arn"} | WHO,
    "steps": RUNS_THE_AGENT
    | {"outage_hours", "topic_arn", "public_url", "webhook_url", "webhook_secret", "separate_approvers"},
    "recover": {"state_machine_arn", "event_bus"},
}
LEFT_AS_THEY_ARE = {"table_prefix", "agent_module", "openai_api_key", "anthropic_api_key"}
"""Settings with a default that no parameter of the template changes; a key is never a variable of a function."""


def test_each_function_is_told_what_it_needs() -> None:
    """The variables of each function are the settings that its module uses, and every setting has its variable."""
    shared = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
    assert {name.lower() for name in shared} == ALWAYS
    for name, function in FUNCTIONS.items():
        own = function.get("Environment", {}).get("Variables", {})
        assert {variable.lower() for variable in own} == NEEDS[name], name
        assert all(variable.isupper() for variable in own)
    assert set(Settings.model_fields) == ALWAYS.union(LEFT_AS_THEY_ARE, *NEEDS.values())


def test_a_request_answers_before_the_gateway_gives_up() -> None:
    """No function behind the API may run longer than API Gateway waits."""
    assert TEMPLATE["Parameters"]["RequestSeconds"]["MaxValue"] <= 29
    for name in ("runs", "sessions", "approvals"):
        assert FUNCTIONS[name]["Timeout"] in (29, {"Ref": "RequestSeconds"})


def test_no_key_is_in_the_template() -> None:
    """A key is named by the place that holds it: no parameter takes one, and no variable of a function is one."""
    places = ("ApiKeySecret", "ApiKeyParameter")
    assert not [name for name in TEMPLATE["Parameters"] if "Key" in name and name not in places]
    for name in places:
        assert TEMPLATE["Parameters"][name]["Default"] == ""
    for function in FUNCTIONS.values():
        variables = function.get("Environment", {}).get("Variables", {})
        assert not [name for name in variables if name.endswith(("_KEY", "_TOKEN", "_PASSWORD"))]


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_is_the_one_that_the_store_uses() -> None:
    """Keys, attributes, index and billing are those that the store defines, and TTL is on for its attribute."""
    table = RESOURCES["Table"]["Properties"]
    for name, value in TABLE.items():
        assert table[name] == value, name
    assert [index["IndexName"] for index in table["GlobalSecondaryIndexes"]] == [LISTING_INDEX]
    assert table["TimeToLiveSpecification"] == {"AttributeName": TTL_ATTRIBUTE, "Enabled": True}


def test_the_table_outlives_its_stack() -> None:
    """The table is kept when the stack goes, encrypted, and can be restored to any second."""
    table = RESOURCES["Table"]
    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert table["Properties"]["SSESpecification"]["SSEEnabled"] is True
    assert table["Properties"]["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True


# --- permissions -----------------------------------------------------------------------------------------------------

ACTIONS = {
    # entries and heads
    "log.head": {"BatchGetItem"},
    "log.heads": {"Query"},
    "log.announce": {"UpdateItem"},
    "log.settle": {"DeleteItem", "UpdateItem"},
    # leases
    "leases.acquire": {"UpdateItem"},
    "leases.look": {"GetItem"},
    "leases.note_execution": {"UpdateItem"},
    "leases.request_abort": {"UpdateItem"},
    "leases.release": {"UpdateItem"},
    # checkpoints: an entry larger than an item is written in chunks, in batches
    "checkpoints.load": {"BatchGetItem", "Query"},
    "checkpoints.history": {"Query"},
    "checkpoints.save": {"BatchGetItem", "BatchWriteItem", "PutItem", "Query", "UpdateItem"},
    "checkpoints.maintain": {"BatchGetItem", "BatchWriteItem", "PutItem", "Query", "UpdateItem"},
    "checkpoints.delete": {"BatchWriteItem", "PutItem", "Query", "UpdateItem"},
    # approvals
    "approvals.get": {"Query"},
    "approvals.list": {"Query"},
    "approvals.append": {"BatchWriteItem", "PutItem", "UpdateItem"},
    "approvals.request": {"BatchWriteItem", "PutItem", "Query", "UpdateItem"},
}
"""The DynamoDB actions behind each call of the store."""

HANDS_OVER = {"log.announce", "leases.look", "states.start_execution", "states.describe_execution"}
CARRIES_ON = HANDS_OVER | {"approvals.get", "states.send_task_success"}
RUNS = {
    *(
        "leases.acquire",
        "leases.look",
        "leases.release",
        "leases.request_abort",
        "log.announce",
        "log.head",
        "log.settle",
    ),
    *("checkpoints.load", "checkpoints.save", "checkpoints.maintain", "approvals.request", "events.put_events"),
}
USES = {
    "runs": RUNS | {"checkpoints.history", "checkpoints.delete", "approvals.append"} | CARRIES_ON,
    "sessions": {"checkpoints.load", "checkpoints.history", "log.heads"},
    "approvals": {"approvals.list", "approvals.get", "approvals.append", "checkpoints.load"} | CARRIES_ON,
    "steps": RUNS
    | {"leases.note_execution", "approvals.get", "approvals.append", "states.send_task_success", "topics.publish"},
    "recover": {"log.heads", "log.head", "log.settle", "leases.look", "checkpoints.load", "checkpoints.save"}
    | {"events.put_events"}
    | CARRIES_ON,
}
"""What each function calls, itself or through the modules that it uses."""


def statements(policies: Any) -> list[dict[str, Any]]:
    return [statement for policy in policies for statement in policy["Statement"]]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def allowed(function: dict[str, Any]) -> set[str]:
    given = statements(function["Policies"])
    assert all(statement["Effect"] == "Allow" for statement in given)
    return {action for statement in given for action in as_list(statement["Action"])}


def action_of(call: str) -> set[str]:
    part, _, method = call.partition(".")
    if part == "states":
        return {"states:" + "".join(word.title() for word in method.split("_"))}
    if part == "events":
        return {"events:PutEvents"}
    return {"sns:Publish"} if part == "topics" else {f"dynamodb:{action}" for action in ACTIONS[call]}


@pytest.mark.parametrize("name", USES)
def test_a_function_may_do_what_it_calls_and_no_more(name: str) -> None:
    """The actions of each policy are those behind the calls of its module, without a wildcard."""
    assert allowed(FUNCTIONS[name]) == set[str]().union(*map(action_of, USES[name]))


def test_every_call_of_the_handlers_is_in_the_map() -> None:
    """A call of the store or of a client that no handler made before is added to the map, and to a policy."""
    written = "\n".join(path.read_text() for path in (ROOT / "handlers").glob("*.py"))
    made = set(re.findall(r"\.store\.((?:log|leases|checkpoints|approvals)\.\w+)\(", written))
    made |= {f"{client}.{method}" for client, method in re.findall(r"app\.(states|topics|events)\.(\w+)\(", written)}
    assert made <= set[str]().union(*USES.values())


MACHINE = "arn:${AWS::Partition}:states:${AWS::Region}:${AWS::AccountId}:stateMachine:${AWS::StackName}-runs"


def test_a_permission_is_for_our_own_resources() -> None:
    """Every statement names this stack's own resources; the index is open to those who list, and only to them."""
    for name, function in FUNCTIONS.items():
        lists = {"log.heads", "approvals.list"} & USES[name]
        for statement in statements(function["Policies"]):
            resources = as_list(statement["Resource"])
            assert "*" not in resources
            if statement["Sid"] == "Table":
                index = {"Fn::Sub": f"${{Table.Arn}}/index/{LISTING_INDEX}"}
                assert resources == [{"Fn::GetAtt": "Table.Arn"}, *([index] if lists else [])], name
    machine = statements(RESOURCES["RunsMachine"]["Properties"]["Policies"])
    assert [(s["Action"], s["Resource"]) for s in machine] == [
        ("lambda:InvokeFunction", {"Fn::GetAtt": "StepsFunction.Arn"}),
        ("states:StartExecution", {"Fn::Sub": MACHINE}),
    ]


MODEL_CALLS = {
    "ApiKeySecretPolicy": ("HasApiKeySecret", {"secretsmanager:GetSecretValue"}),
    "ApiKeyParameterPolicy": ("HasApiKeyParameter", {"ssm:GetParameter"}),
    "BedrockPolicy": ("HasBedrockModel", {"bedrock:InvokeModel", "bedrock:InvokeModelWithResponseStream"}),
}
"""What the model needs: under which condition, and the actions behind `get_secret`, `get_parameter`, `converse` and
`converse_stream`."""


@pytest.mark.parametrize("name", MODEL_CALLS)
def test_the_model_is_allowed_only_what_is_configured(name: str) -> None:
    """The two functions that run the agent, and nobody else, may use the configured secret or model, and only if there
    is one."""
    condition, actions = MODEL_CALLS[name]
    policy = RESOURCES[name]
    assert (policy["Type"], policy["Condition"]) == ("AWS::IAM::Policy", condition)
    assert policy["Properties"]["Roles"] == [{"Ref": "RunsFunctionRole"}, {"Ref": "StepsFunctionRole"}]
    given = policy["Properties"]["PolicyDocument"]["Statement"]
    assert {action for statement in given for action in as_list(statement["Action"])} == actions
    for statement in given:
        assert statement["Effect"] == "Allow"
        assert "*" not in as_list(statement["Resource"])
        if "*" in str(statement["Resource"]):  # the models behind an inference profile, for that profile alone
            assert set(statement["Condition"]["StringEquals"]) == {"bedrock:InferenceProfileArn"}
    policies = {name for name, one in RESOURCES.items() if one["Type"] == "AWS::IAM::Policy"}
    assert policies == {*MODEL_CALLS, "WebhookSecretPolicy", "EscalationTopicsPolicy"}


def test_the_webhook_may_be_signed_with_its_own_secret_alone() -> None:
    """Where a secret is named, the function that tells people may read that one."""
    policy = RESOURCES["WebhookSecretPolicy"]
    assert (policy["Condition"], policy["Properties"]["Roles"]) == ("HasWebhookSecret", [{"Ref": "StepsFunctionRole"}])
    [statement] = policy["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Action"] == "secretsmanager:GetSecretValue"
    assert statement["Resource"]["Fn::Sub"].endswith(":secret:${WebhookSecret}-??????")


def test_the_topics_of_an_escalation_are_told_by_one_function() -> None:
    """Where levels may name topics, the function that tells people may publish to these, and to nothing else."""
    policy = RESOURCES["EscalationTopicsPolicy"]
    assert (policy["Condition"], policy["Properties"]["Roles"]) == (
        "HasEscalationTopics",
        [{"Ref": "StepsFunctionRole"}],
    )
    [statement] = policy["Properties"]["PolicyDocument"]["Statement"]
    assert (statement["Action"], statement["Resource"]) == ("sns:Publish", {"Ref": "EscalationTopics"})


def resolved(value: Any, parameters: dict[str, str]) -> Any:
    """The template's value as CloudFormation resolves it with these parameters. Conditions may not do more than this:
    other functions in them are not for every CloudFormation."""
    match value:
        case {"Ref": name}:
            return parameters.get(name, name)
        case {"Fn::Equals": [one, other]}:
            return resolved(one, parameters) == resolved(other, parameters)
        case {"Fn::Not": [one]}:
            return not resolved(one, parameters)
        case {"Fn::If": [condition, yes, no]}:
            holds = resolved(TEMPLATE["Conditions"][condition], parameters)
            return resolved(yes if holds else no, parameters)
        case {"Fn::Sub": str() as text}:
            filled = re.compile(r"\$\{([\w:]+)\}")
            return filled.sub(lambda found: parameters.get(found[1], found[1].rpartition(":")[2]), text)
        case dict():
            return {name: resolved(one, parameters) for name, one in value.items()}
        case list():
            return [resolved(one, parameters) for one in value]
    return value


@pytest.mark.parametrize(
    ("parameters", "there", "resources"),
    [
        ({"Model": "openai:gpt"}, [], []),
        (
            {"BedrockModel": "us.amazon.nova-lite-v1:0"},
            ["BedrockPolicy"],
            [
                "arn:Partition:bedrock:Region::foundation-model/us.amazon.nova-lite-v1:0",
                "arn:Partition:bedrock:Region:AccountId:inference-profile/us.amazon.nova-lite-v1:0",
                "arn:Partition:bedrock:*::foundation-model/*",
            ],
        ),
        (
            {"Model": "anthropic:claude", "ApiKeySecret": "prod/keys"},
            ["ApiKeySecretPolicy"],
            ["arn:Partition:secretsmanager:Region:AccountId:secret:prod/keys-??????"],
        ),
        (
            {"ApiKeyParameter": "/keys/openai"},
            ["ApiKeyParameterPolicy"],
            ["arn:Partition:ssm:Region:AccountId:parameter/keys/openai"],
        ),
    ],
)
def test_permissions_follow_the_parameters(parameters: dict[str, str], there: list[str], resources: list[str]) -> None:
    """With these parameters exactly these policies exist, and they name exactly these resources."""
    known = {name: parameter.get("Default", "") for name, parameter in TEMPLATE["Parameters"].items()} | parameters
    made = [n for n, (condition, _) in MODEL_CALLS.items() if resolved(TEMPLATE["Conditions"][condition], known)]
    assert made == there
    documents = [resolved(RESOURCES[name]["Properties"]["PolicyDocument"], known) for name in made]
    given = statements(documents)
    assert [resource for one in given for resource in as_list(one["Resource"])] == resources
    for name in ("runs", "steps"):
        model = resolved(FUNCTIONS[name]["Environment"]["Variables"]["MODEL"], known)
        assert model == (f"bedrock:{known['BedrockModel']}" if known["BedrockModel"] else known["Model"])


# --- the API ---------------------------------------------------------------------------------------------------------


def api_events() -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, event["Properties"])
        for name, function in FUNCTIONS.items()
        for event in function.get("Events", {}).values()
        if event["Type"] == "Api"
    ]


def test_everything_is_signed_but_the_callbacks() -> None:
    """IAM is the default; only the two paths of a callback token, which is its own proof, take no signature."""
    assert RESOURCES["Api"]["Properties"]["Auth"] == {"DefaultAuthorizer": "AWS_IAM"}
    opened = {(event["Path"], event["Method"]) for _, event in api_events() if "Auth" in event}
    assert opened == {("/callbacks/{token}", "GET"), ("/callbacks/{token}", "POST")}
    assert all(event["Auth"] == {"Authorizer": "NONE"} for _, event in api_events() if "Auth" in event)


def test_the_gateway_has_the_paths_of_the_handlers() -> None:
    """Each path and method of the API is a route of the module behind it, and each route is in the API."""
    for name, module in (("runs", runs), ("sessions", sessions), ("approvals", approvals)):
        served = module.router._routes
        routes = {(re.sub(r"<\w+>", "{}", rule), method) for rule, methods, *_ in served for method in methods}
        paths = {(re.sub(r"\{\w+\}", "{}", e["Path"]), e["Method"]) for owner, e in api_events() if owner == name}
        assert paths == routes, name
    assert all(event["RestApiId"] == {"Ref": "Api"} for _, event in api_events())


def test_no_log_holds_a_callback_token() -> None:
    """The access log names the resource's path and never the URL, and requests are not traced."""
    api = RESOURCES["Api"]["Properties"]
    written = api["AccessLogSetting"]["Fn::If"][1]["Format"]
    assert set(json.loads(written)) >= {"request_id", "method", "path", "status"}
    variables = set(re.findall(r"\$context\.[\w.]+", written))
    assert "$context.resourcePath" in variables
    assert not variables & {"$context.path", "$context.requestOverride.path", "$context.authorizer.principalId"}
    assert "TracingEnabled" not in api
    assert all(setting.get("DataTraceEnabled") is not True for setting in api.get("MethodSettings", []))


def test_a_lambda_that_died_is_answered_like_every_other_error() -> None:
    """When a function dies the caller gets 503, Retry-After, and a document with code and hint."""
    responses = RESOURCES["Api"]["Properties"]["GatewayResponses"]
    for name in ("INTEGRATION_FAILURE", "DEFAULT_5XX"):
        assert responses[name]["StatusCode"] == "503"
        assert responses[name]["ResponseParameters"]["Headers"]["Retry-After"]
        body = json.loads(responses[name]["ResponseTemplates"]["application/json"])
        assert {"type", "title", "status", "detail", "code", "hint", "retryable"} <= set(body)


# --- the state machine -----------------------------------------------------------------------------------------------

STATES_BY_NAME: dict[str, Any] = DEFINITION["States"]


def test_every_outcome_of_a_slice_has_its_way() -> None:
    """The choice after a slice knows exactly the outcomes that a slice has, and fails on any other."""
    choice = STATES_BY_NAME["HowWasItLeft"]
    assert {rule["StringEquals"] for rule in choice["Choices"]} == set(get_args(Outcome))
    assert {rule["Variable"] for rule in choice["Choices"]} == {"$.slice.outcome"}
    assert STATES_BY_NAME[choice["Default"]]["Type"] == "Fail"


def test_every_state_can_be_reached() -> None:
    """No state leads nowhere, and none stands alone."""
    named = {DEFINITION["StartAt"]}
    for state in STATES_BY_NAME.values():
        named |= {state[key] for key in ("Next", "Default") if key in state}
        named |= {rule["Next"] for rule in (*state.get("Choices", []), *state.get("Catch", []))}
    assert named == set(STATES_BY_NAME)


def test_a_wait_for_a_human_has_an_end() -> None:
    """The wait takes its time-out from the slice's answer, and a time-out leads back to a slice and is not retried."""
    asks = STATES_BY_NAME["AskHuman"]
    assert asks["Resource"].endswith(":lambda:invoke.waitForTaskToken")
    assert asks["TimeoutSecondsPath"] == "$.slice.timeout_seconds"
    assert [catch["ErrorEquals"] for catch in asks["Catch"]] == [["States.Timeout"], ["States.ALL"]]
    assert asks["Retry"][0] == {"ErrorEquals": ["States.Timeout"], "MaxAttempts": 0}


@pytest.mark.parametrize("name", ["RunSlice", "AskHuman", "ParkRun"])
def test_a_task_that_fails_is_tried_again_with_backoff(name: str) -> None:
    """Whatever goes wrong with a task, the machine waits longer and longer, with jitter, before it gives up."""
    retry = STATES_BY_NAME[name]["Retry"][-1]
    assert retry["ErrorEquals"] == ["States.ALL"]
    assert retry["BackoffRate"] > 1
    assert retry["MaxAttempts"] >= 5
    assert (retry["MaxDelaySeconds"] > 0, retry["JitterStrategy"]) == (True, "FULL")


@pytest.mark.parametrize("name", ["RunSlice", "AskHuman", "ParkRun"])
def test_an_outage_is_waited_out(name: str) -> None:
    """A task that says `TryAgain` is tried again for at least the hours that a deployment may ask for."""
    [retry] = [retry for retry in STATES_BY_NAME[name]["Retry"] if retry["ErrorEquals"] == [TryAgain.__name__]]
    average = retry["MaxDelaySeconds"] / 2  # full jitter
    assert retry["MaxAttempts"] * average > TEMPLATE["Parameters"]["OutageHours"]["MaxValue"] * 3600
    assert TEMPLATE["Parameters"]["OutageHours"]["MaxValue"] == 72


@pytest.mark.parametrize("name", ["RunSlice", "AskHuman"])
def test_what_keeps_failing_is_parked(name: str) -> None:
    """A task that is given up on leads to the run being parked with its reason, not to a failed execution."""
    assert STATES_BY_NAME[name]["Catch"][-1] == {
        "ErrorEquals": ["States.ALL"],
        "ResultPath": "$.failure",
        "Next": "ParkRun",
    }
    assert STATES_BY_NAME["ParkRun"]["Parameters"]["Payload"]["error.$"] == "$.failure.Error"


COUNTED = re.compile(r"\b([A-Z]\w+)=|\"([A-Z][a-zA-Z]+)\"")


def test_alarms_and_dashboard_show_what_is_counted() -> None:
    """Each of our own metrics that is watched is counted somewhere in the handlers, under this stack's name."""
    written = "\n".join(path.read_text() for path in (ROOT / "handlers").glob("*.py"))
    counted = {one or other for one, other in COUNTED.findall(written)}
    body = json.loads(RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])
    shown = {metric[1] for widget in body["widgets"] for metric in widget["properties"]["metrics"]}
    alarms = {name: one["Properties"] for name, one in RESOURCES.items() if one["Type"] == "AWS::CloudWatch::Alarm"}
    own = [alarm for alarm in alarms.values() if alarm["Namespace"] == NAMESPACE]
    assert shown | {alarm["MetricName"] for alarm in own} <= counted
    assert all(alarm["Dimensions"] == [{"Name": "service", "Value": {"Ref": "AWS::StackName"}}] for alarm in own)
    assert all(alarm["AlarmActions"] == [{"Ref": "AlarmTopic"}] for alarm in alarms.values())


def test_the_operations_page_explains_every_alarm() -> None:
    """Each alarm of the template has its section on the page, and each section its alarm."""
    page = (ROOT / "infra" / "OPERATIONS.md").read_text()
    alarms = {name for name, one in RESOURCES.items() if one["Type"] == "AWS::CloudWatch::Alarm"}
    assert set(re.findall(r"^### (\w+Alarm)$", page, re.MULTILINE)) == alarms


def test_every_substitution_is_defined() -> None:
    """What the definition leaves open is what the template fills in."""
    left_open = set(re.findall(r"\$\{(\w+)\}", json.dumps(DEFINITION)))
    machine = RESOURCES["RunsMachine"]["Properties"]
    assert left_open == set(machine["DefinitionSubstitutions"])
    assert machine["DefinitionUri"] == "infra/run.asl.json"
    assert machine["Type"] == "STANDARD"


def test_the_machine_has_the_name_that_the_functions_use() -> None:
    """Functions know the machine by a name, not by reference, which would be a cycle: the two names are one."""
    name = RESOURCES["RunsMachine"]["Properties"]["Name"]["Fn::Sub"]
    for function in ("runs", "approvals", "recover"):
        arn = FUNCTIONS[function]["Environment"]["Variables"]["STATE_MACHINE_ARN"]["Fn::Sub"]
        assert arn.endswith(f":stateMachine:{name}")


# --- what travels through it -----------------------------------------------------------------------------------------

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests" / "golden" / "step-inputs-v1.json").read_text())
TASKS = {name: task for name, task in GOLDEN.items() if "task" in task}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_an_input_of_any_release_is_taken(task: dict[str, Any]) -> None:
    """An execution may wait for a year: what an earlier release put into it is read, field by field, by this one."""
    read = parse(task)
    kinds = {"ask-human": AskHuman, "park-run": ParkRun, "run-slice": RunSlice}
    assert isinstance(read, kinds[task["task"]])
    for name, value in task.items():
        taken = getattr(read, name)
        assert (taken.model_dump() if hasattr(taken, "model_dump") else taken) == value


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_an_input_of_a_later_release_is_refused(task: dict[str, Any]) -> None:
    """A version that this release does not know is a clear error, not a guess."""
    with pytest.raises(ConfigurationError, match=f"version {STEP_INPUT_VERSION + 1}"):
        parse({**task, "v": STEP_INPUT_VERSION + 1})


def left(outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "approval_id": "apr_1", "timeout_seconds": 60, "until": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize("input", [execution_input(session_id="s", run_id="r"), json.dumps(GOLDEN["execution"])])
def test_the_machine_gives_each_task_an_input_that_it_reads(input: str) -> None:
    """Along every way through the definition, what a task is given is read by today's code, and holds only ids."""
    outcomes = iter(["deadline", "busy", "awaiting-approval", "awaiting-approval", "awaiting-approval", "finished"])
    seen: list[Any] = []

    def invoke(payload: dict[str, Any]) -> Any:
        seen.append(parse(payload))
        return left(next(outcomes)) if isinstance(seen[-1], RunSlice) else {"asked": True}

    machine = Execution(input, invoke)
    assert machine.go() == "WaitForLease"
    assert machine.wait_over() == "AskHuman"
    assert machine.answer({"approved": True}) == "AskHuman"
    assert machine.time_out() == "AskHuman"
    assert machine.answer("anything") == "Done"
    assert machine.status == "SUCCEEDED"
    answers = [task.answer for task in seen if isinstance(task, RunSlice)]
    assert [bool(answer) for answer in answers] == [False, False, False, True, False, True]
    assert {(task.session_id, task.v) for task in seen} == {(json.loads(input)["session_id"], 1)}
    assert all(len(json.dumps(payload)) < 1_000 for payload in machine.payloads)


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_the_machine_ends_or_waits_after_every_outcome(outcome: str) -> None:
    """After any outcome the machine ends, waits or runs another slice; one that it does not know makes it fail."""
    outcomes = iter([outcome, "finished"])

    def invoke(payload: dict[str, Any]) -> Any:
        return left(next(outcomes)) if payload["task"] == "run-slice" else None

    machine = Execution(execution_input(session_id="s", run_id="r"), invoke)
    stays = {"awaiting-approval": "AskHuman", "busy": "WaitForLease"}.get(outcome, "Done")
    assert machine.go() == stays
    unknown = Execution(execution_input(session_id="s", run_id="r"), lambda payload: left("lost"))
    assert (unknown.go(), unknown.status) == ("UnknownOutcome", "FAILED")
