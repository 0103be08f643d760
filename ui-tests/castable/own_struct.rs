// Apex: a struct without `to` is passed on as it is, unseen; one with `to` is trusted with the cast.
use tch::{Tensor, nn::ModuleT};
use tch_amp::{AmpModel, O2};

struct Batch {
    images: Tensor,
    labels: Tensor,
}

fn loss<M: ModuleT>(model: &AmpModel<O2, M>, batch: &Batch) -> Tensor {
    let logits = model.forward_with(batch, |net, batch| net.forward_t(&batch.images, true));
    logits.cross_entropy_for_logits(&batch.labels)
}

fn main() {}
