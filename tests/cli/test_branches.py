"""What the commands about branches ask for, beyond what they print."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evctl.cli.branch_values import complete_branch
from evctl.cli.commands.branches import PAGE
from tests.cli.conftest import Run, write_state
from tests.client.fake_admin import FakeAdmin
from tests.client.fake_kv import row


def test_a_long_list_is_asked_for_in_pages(run: Run, fake: FakeAdmin) -> None:
    fake.kv.rows = [row(f"b{number:05}", 2 * PAGE + 9 - number) for number in range(2 * PAGE + 9)]
    ran = run("branches", "-o", "name", "--limit", str(2 * PAGE + 5), "--sort", "blocks")
    assert ran.out.split() == [f"b{number:05}" for number in range(2 * PAGE + 5)]
    asked = [what["limit"] for name, what in fake.kv.calls if name == "branches"]
    assert asked == [str(PAGE), str(PAGE), "5"]
    assert all(what["tenant"] == "default" for _, what in fake.kv.calls)
    assert run("branches").err == "1959 more; --limit 2009 shows all\n"


def test_filters_are_the_control_planes(run: Run, fake: FakeAdmin) -> None:
    run("branches", "-A", "--state", "suspect", "--kind", "sub-agent", "--node", "n1")
    ((_, asked),) = fake.kv.calls
    assert asked == {
        "state": "suspect", "kind": "sub-agent", "node": "n1", "sort": "name", "limit": "50",
    }  # fmt: skip


def test_an_end_says_who_and_why_and_happens_once(run: Run, fake: FakeAdmin) -> None:
    ran = run("branch", "end", "agent-7/try", "-y", "--reason", "runaway")
    assert ran.code == 0, ran.err
    (name, body) = fake.kv.calls[-1][1]
    assert (name, body["reason"]) == ("agent-7/try", "runaway")
    assert "@" in body["by"]
    again = run("branch", "end", "agent-7/try")
    assert (again.code, again.err) == (0, ""), "nothing is asked where nothing changes"
    assert "has ended" in again.out


@pytest.mark.parametrize("command", ["branch end agent-7/main --plan", "branch end agent-7/main"])
def test_nothing_ends_without_a_yes(run: Run, fake: FakeAdmin, command: str) -> None:
    run(*command.split())
    assert not [call for call in fake.kv.calls if call[0] == "end"]
    assert any(each.branch == "agent-7/main" for each in fake.kv.rows)


def test_a_protected_cluster_wants_its_name(run: Run, home: object, fake: FakeAdmin) -> None:
    write_state("prod", fake.path, protected=True)
    command = ("branch", "end", "agent-7/main", "-c", "prod")
    assert run(*command, "-y").code == 8
    assert not [call for call in fake.kv.calls if call[0] == "end"]
    assert run(*command, "--confirm", "prod").code == 0


def test_tab_offers_branches_and_is_silent_on_failure(fake: FakeAdmin) -> None:
    def offered(**params: str | None) -> list[str]:
        context = SimpleNamespace(params=params)
        return complete_branch(context, "agent-7/t")  # type: ignore[arg-type]

    assert offered(cluster=None, tenant=None) == ["agent-7/try"]
    assert offered(cluster=None, tenant="nobody") == []
    assert offered(cluster="absent", tenant=None) == []
