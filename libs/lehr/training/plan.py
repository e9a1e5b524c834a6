"""TrainingPlan: the frozen file that an agent hands to a trainer process."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from lehr.training.spec import JobSpec


class TrainingPlan(BaseModel):
    """Everything one run needs, with every path on the node's own disk."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job_id: str
    run_id: str
    epoch: int
    """Fencing number of the lease."""
    spec: JobSpec
    """The spec with every default resolved; ``data.max_length`` is set."""
    spec_digest: str
    """SHA-256 of the canonical JSON of ``spec``, in hex."""
    model_name: str
    model_revision: str
    dataset_revision: str
    validation_revision: str | None = None
    """Revision of the validation dataset where one is given."""
    model_dir: Path
    """Folder with config, weights (safetensors) and tokenizer of the base model."""
    teacher_dir: Path | None = None
    """The same of ``hyperparameters.teacher_model``, for methods that have a teacher."""
    reward_model_dirs: dict[str, Path] = {}
    """The same of each reward model, by the reference that names it in the rewards."""
    dataset_file: Path
    """Canonical rows (``rows.jsonl.zst``); the trainer splits them as the plan's data section
    says."""
    validation_file: Path | None = None
    images_file: Path | None = None
    """Archive with the images of the dataset's rows, where they have any."""
    validation_images_file: Path | None = None
    tokens_file: Path | None = None
    """Token table of the dataset; None where the trainer has to tokenise the rows itself."""
    validation_tokens_file: Path | None = None
    resume_dir: Path | None = None
    """A checkpoint folder to continue from; None starts at step 0."""
    output_dir: Path
    """Folder in which the trainer makes one folder a checkpoint."""
    progress_file: Path
    """24 bytes: three little-endian doubles, see ``lehr.training.progress``."""
    stop_at_step: int | None = None
    """Test support: stop as a user would at this step."""
