"""Every command with the least that it takes, and the answers of a platform with one of each."""

from typing import Any

from lehr.api.billing.v1 import billing_pb2
from lehr.api.catalog.v1 import catalog_pb2, hub_pb2
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2
from lehr.api.gateway.v1 import gateway_pb2
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.api.telemetry.v1 import telemetry_pb2

ODD = "[/red] :warning: \xe9"

# Each command that talks to the platform, with the least that it takes.
CALLS = [
    "plan job.yaml",
    "jobs create job.yaml --max-cost 5EUR",
    "jobs list",
    "jobs get job_1",
    "jobs watch job_1",
    "jobs logs job_1",
    "jobs logs job_1 --follow",
    "jobs metrics job_1",
    "jobs stop job_1",
    "jobs resume job_1",
    "jobs cost job_1",
    "checkpoints list job_1",
    "checkpoints download job_1:best folder",
    "checkpoints delete ckpt_1",
    "checkpoints pin ckpt_1",
    "datasets upload rows.jsonl --name qa",
    "datasets list",
    "datasets inspect qa",
    "datasets inspect qa --model smol",
    "datasets preview qa --model smol",
    "datasets download qa folder",
    "datasets delete qa",
    "datasets import owner/qa --name qa",
    "datasets import-s3 s3://bucket/qa --endpoint https://s3.example.org --name qa",
    "models add model --name smol --license Apache-2.0",
    "models add-checkpoint job_1:best --name tuned",
    "models show smol",
    "models list",
    "models import owner/smol --name smol",
    "models search smol",
    "models delete smol",
    "credentials put hub",
    "credentials put bucket --s3",
    "credentials list",
    "credentials delete hub",
    "gpus list",
    "gpus nodes",
    "gpus check",
    "gpus release gpu_1 --reason rebooted",
    "billing rates",
    "billing balance",
    "billing top-up 5EUR",
    "billing ledger",
    "billing reconcile",
    "events tail",
    "keys whoami",
    "keys create laptop",
    "keys list",
    "keys revoke key_1",
]
STACK_CALLS = ["up", "status", "logs", "down", "demo"]

JOB = job_pb2.Job(job_id="job_1", state=job_pb2.JOB_STATE_SUCCEEDED, state_message=ODD)
JOB.progress.best_loss = float("inf")
KEY = gateway_pb2.ApiKey(key_id="key_1", name=ODD)
CHECKPOINT = checkpoint_store_pb2.Checkpoint(checkpoint_id="ckpt_1", eval_loss="NaN")
MODEL = catalog_pb2.Model(name="smol", license=ODD)
LINE = telemetry_pb2.LogLine(level="output", text=ODD)
DATASET = catalog_pb2.Dataset(name="qa", row_kind="messages")
DATASET.problems.add(reason="ROW_INVALID", description=ODD, row_count=1, lines=[1])
READY = catalog_pb2.Dataset(name="qa", state=catalog_pb2.ENTRY_STATE_READY)
LENGTHS = catalog_pb2.LengthFacts(warnings=[ODD], bin_bounds=[5], bin_counts=[1])
LEDGER = billing_pb2.ListLedgerResponse()
LEDGER.transactions.add(kind=ODD).entries.add(account="a", side="debit")
PREVIEW = catalog_pb2.SamplePreview(tokens=[ODD], trained=[True])
NODE = gpu_allocator_pb2.Node(name=ODD, gpus=[gpu_allocator_pb2.Gpu()])

ANSWERS: dict[str, dict[str, Any]] = {
    "jobs": {
        "plan": job_pb2.Plan(plan_digest="d", warnings=[ODD], not_done=[ODD], destination=ODD),
        "page": scheduler_pb2.ListJobsResponse(jobs=[JOB]),
        "metrics": [telemetry_pb2.Point(step=1, name="loss", value="NaN")],
        "cost": billing_pb2.Cost(job_id="job_1"),
        **dict.fromkeys(("create", "get", "stop", "resume"), JOB),
    },
    "checkpoints": {
        "list": checkpoint_store_pb2.ListCheckpointsResponse(checkpoints=[CHECKPOINT]).checkpoints,
        "delete": None,
        **dict.fromkeys(("download", "pin"), CHECKPOINT),
    },
    "datasets": {
        "delete": "ds_1",
        "download": catalog_pb2.DownloadFilesResponse(files=[{"name": "rows.jsonl"}]).files,
        "upload": catalog_pb2.CommitDatasetResponse(dataset=DATASET, is_accepted=True),
        "list": [DATASET],
        "inspect": catalog_pb2.InspectDatasetResponse(dataset=DATASET, lengths=LENGTHS),
        "preview": catalog_pb2.PreviewSamplesResponse(samples=[PREVIEW]).samples,
    },
    "models": {
        "list": [MODEL],
        "delete": "model_1",
        **dict.fromkeys(("add", "add_checkpoint", "get"), MODEL),
    },
    "imports": {
        "dataset": READY,
        "model": MODEL,
        "search": [hub_pb2.HubEntry(repo_id="owner/smol", license=ODD)],
    },
    "credentials": {
        "list": [hub_pb2.Credential(name="hub", kind="hub")],
        **dict.fromkeys(("put_hub_token", "put_s3_keys", "delete"), None),
    },
    "gpus": {
        "tiers": gpu_allocator_pb2.ListTiersResponse(
            tiers=[gpu_allocator_pb2.Tier(tier="cpu", title=ODD)]
        ).tiers,
        "nodes": gpu_allocator_pb2.ListNodesResponse(nodes=[NODE]).nodes,
        "check_held": gpu_allocator_pb2.CheckHeldResponse(),
        "release": gpu_allocator_pb2.Gpu(
            gpu_id="gpu_1", state=gpu_allocator_pb2.GPU_STATE_CLEARING
        ),
    },
    "billing": {
        "quote": billing_pb2.QuoteResponse(),
        "balance": billing_pb2.GetBalanceResponse(),
        "top_up": billing_pb2.TopUpResponse(),
        "ledger": LEDGER,
        "reconcile": billing_pb2.ReconcileResponse(),
    },
    "keys": {
        "whoami": gateway_pb2.WhoAmIResponse(project=ODD),
        "create": gateway_pb2.CreateApiKeyResponse(key=KEY, secret="lehr_sk_x"),
        "list": gateway_pb2.ListApiKeysResponse(keys=[KEY]).keys,
        "revoke": KEY,
    },
    "events": {},
}
STREAMED = {
    "jobs": {"watch": JOB, "logs": LINE, "watch_logs": LINE},
    "events": {"tail": {"time": "t", "type": "lehr.x.y.v1", "subject": "s", "data": {"text": ODD}}},
}
