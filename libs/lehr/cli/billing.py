"""``lehr billing``: prices, credit, the ledger and its proof."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.amounts import read_money
from lehr.cli.output import AsJson, console, fail, money, print_json, print_table, run, when
from lehr.errors import PlatformError

app = typer.Typer(help="Prices, credit and the ledger.", no_args_is_help=True)


@app.command()
def rates(as_json: AsJson = False) -> None:
    """List the prices in force."""
    answer = run(lambda client: client.billing.quote())
    if as_json:
        print_json(answer)
        return
    print_table(
        ("TIER", "PRICE PER GPU HOUR"),
        [(one.tier, money(one.price_per_gpu_hour)) for one in answer.rates],
    )


@app.command()
def balance(as_json: AsJson = False) -> None:
    """Show the tenant's credit."""
    answer = run(lambda client: client.billing.balance())
    if as_json:
        print_json(answer)
        return
    console.print(
        f"credit {money(answer.credit)}, held for jobs {money(answer.held)},"
        f" available {money(answer.available)}"
    )


@app.command("top-up")
def top_up(
    amount: Annotated[str, typer.Argument(help='Amount with currency: "100 EUR".')],
    tenant: Annotated[str, typer.Option(help="Tenant.")] = "default",
    request_id: Annotated[str | None, typer.Option(help="Payment id; booked once.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add credit; operators only."""
    try:
        value = read_money(amount, field="amount")
    except PlatformError as error:
        fail(error)
    answer = run(lambda client: client.billing.top_up(tenant, value, request_id=request_id))
    if as_json:
        print_json(answer)
    else:
        console.print(f"credit is now {money(answer.credit)}")


@app.command()
def ledger(
    job_id: Annotated[str, typer.Option("--job", help="Only this job's.")] = "",
    limit: Annotated[int, typer.Option(help="Most transactions.", min=1, max=500)] = 50,
    as_json: AsJson = False,
) -> None:
    """List bookings, newest first."""
    answer = run(lambda client: client.billing.ledger(job_id=job_id, page_size=limit))
    if as_json:
        print_json(answer)
        return
    print_table(
        ("BOOKED (UTC)", "KIND", "JOB", "DEBIT", "CREDIT", "AMOUNT", "CAUSE"),
        [
            (
                when(one.create_time),
                one.kind,
                one.job_id or "-",
                _accounts(one.entries, "debit"),
                _accounts(one.entries, "credit"),
                money(one.entries[0].amount),
                one.cause,
            )
            for one in answer.transactions
        ],
    )


@app.command()
def reconcile(as_json: AsJson = False) -> None:
    """Prove that the ledger equals the leases, or say where it does not."""
    answer = run(lambda client: client.billing.reconcile())
    if as_json:
        print_json(answer)
    else:
        console.print(
            f"{answer.job_count} jobs, {answer.lease_count} leases, {answer.billed_seconds} s"
            f" billed, {money(answer.charged)} charged: {len(answer.differences)} differences"
        )
        for difference in answer.differences:
            console.print(difference, style="red", markup=False, soft_wrap=True)
    if answer.differences:
        raise typer.Exit(1)


def _accounts(entries: object, side: str) -> str:
    return ", ".join(one.account for one in entries if one.side == side)  # type: ignore[attr-defined]
