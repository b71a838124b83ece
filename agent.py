"""The agent that this deployment serves. This is the file to edit.

As it stands, it is the registry of fictional countries: it knows how many people live there, and whether a country of
that size may keep dragons. The second is for a human to decide.
"""

from durable import Agent, tool

POPULATIONS = {"Crumpet": 123124, "Grand Fenwick": 6214}


@tool
def lookup_population(country: str) -> int:
    """Returns the current population of the specified fictional country"""
    return POPULATIONS[country]


@tool(needs_approval=True)
def can_have_dragons(population: int) -> bool:
    """Returns True if the specified population can have dragons, False otherwise"""
    return population > 10_000


# The model is the deployment's parameter `Model`; give the agent a `provider` to choose it here.
agent = Agent(name="registry", tools=[lookup_population, can_have_dragons])
