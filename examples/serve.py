"""A randomized ensemble behind HTTP: every query is answered by a member that is drawn anew.

pip install fastapi uvicorn
uvicorn serve:app --app-dir examples                             # or ENSEMBLE=my-ensemble uvicorn ...
curl -X POST localhost:8000/predict -H 'content-type: application/json' -d '{"images": [[[[0.0, ...]]]]}'

Return labels only, as here: logits or the member that answered would tell an attacker which one was drawn.
"""

from __future__ import annotations

import os

import torch
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import recarc

deployed = recarc.load_ensemble(os.environ.get("ENSEMBLE", "zoo:bat-cnn-digits")).deploy()
app = FastAPI(title="A randomized ensemble")


class Query(BaseModel):
    images: list[list[list[list[float]]]]  # (B, C, H, W) in [0, 1]


class Answer(BaseModel):
    labels: list[int]


@app.post("/predict")
def predict(query: Query) -> Answer:
    try:
        x = torch.tensor(query.images)
        return Answer(labels=deployed.predict(x).tolist())
    except (RuntimeError, ValueError, TypeError) as error:  # images of another shape
        raise HTTPException(422, str(error).splitlines()[0]) from error
