"""The new classifier: fresh weights that follow from the cell's seed, or those that fit best to frozen features."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import nn

from pliant.components import Anatomy
from pliant.errors import ModelError


def classifiers(anatomy: Anatomy, classes: int) -> dict[str, nn.Linear]:
    """Return the linear layers that give the logits, by full name (two in a distilled model).

    Raises:
        ModelError: the model has no classifier, or one for another number of classes.
    """
    owned = {name.rpartition(".")[0] for c in anatomy.of("head") for name in c.parameters}
    linear = {n: m for n, m in anatomy.model.named_modules() if n in owned and isinstance(m, nn.Linear)}
    found = {name: module for name, module in linear.items() if module.out_features == classes}
    if not found:
        has = ", ".join(f"{name} with {m.out_features} outputs" for name, m in linear.items()) or "no classifier"
        raise ModelError(
            f"{type(anatomy.model).__name__} has {has}, but the data have {classes} classes; load it for them: "
            "pliant.models.load(name, classes=data.classes)"
        )
    return found


@torch.no_grad()
def renew_classifier(anatomy: Anatomy, *, classes: int, seed: int) -> None:
    """Give the classifier the weights that loading the model under this seed gives it.

    Weights are normal, cut at two standard deviations of the configuration's `initializer_range` (0.02); biases are
    zero. They are drawn on the CPU, so a seed means the same on every device.
    """
    deviation = float(getattr(getattr(anatomy.model, "config", None), "initializer_range", 0.02))
    generator = torch.Generator().manual_seed(seed)
    for module in classifiers(anatomy, classes).values():
        weight = torch.empty(module.weight.shape)
        nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        module.weight.copy_(weight)
        if module.bias is not None:
            module.bias.zero_()


def fitted_classifier(
    features: Float[np.ndarray, "images dim"], labels: Int64[np.ndarray, " images"], *, classes: int
) -> tuple[Float[np.ndarray, "classes dim"], Float[np.ndarray, " classes"]]:
    """Return weights and biases of the logistic regression of the labels on the standardised features.

    They apply to the features as they are. A class without images has zeros.
    """
    from sklearn.linear_model import LogisticRegression

    mean, std = features.mean(0), features.std(0)
    std = np.where(std > 0, std, 1.0)
    found = LogisticRegression(max_iter=1000).fit((features - mean) / std, labels)
    coefficients, intercepts = found.coef_ / std, found.intercept_
    intercepts = intercepts - coefficients @ mean
    if len(found.classes_) == 2:  # one logit for the second class: half to each side
        coefficients, intercepts = (np.concatenate([-v, v]) / 2 for v in (coefficients, intercepts))
    weight, bias = np.zeros((classes, features.shape[1])), np.zeros(classes)
    weight[found.classes_], bias[found.classes_] = coefficients, intercepts
    return weight, bias
