//! Tables of outputs.

use fastcollate::batch::{
    Beside, FieldKind, FieldSpec, LOSS_MASK, OutputAlign, OutputSpec, PositionIds, What, outputs,
};
use fastcollate::plan::Layout;
use fastcollate::write::PositionPadding;
use fastcollate::{Dtype, IntDtype, Number};

const ALL: OutputSpec = OutputSpec {
    input_ids: IntDtype::I64,
    attention_mask: Dtype::Bool,
    response_mask: Dtype::Bool,
    sequence_ids: IntDtype::I32,
    position_ids: (
        PositionIds::Padded(PositionPadding::RepeatLast),
        IntDtype::I64,
    ),
    labels: Some((false, IntDtype::I64)),
    beside: Beside::All,
    loss_mask: Some(Dtype::F32),
};

fn field(key: &str, kind: FieldKind) -> FieldSpec {
    FieldSpec {
        key: key.to_owned(),
        name: key.to_owned(),
        kind,
        is_plain: false,
        spread: None,
        default: None,
        weighs: key == LOSS_MASK,
        any_length: false,
        fill: Number::Int(0),
        gap_fill: Number::Int(0),
        dtype: Some(Dtype::F32),
    }
}

#[test]
fn no_field_can_have_the_key_of_another_output() {
    let message = |fields: &[&FieldSpec], spec: &OutputSpec, layout| {
        let error = outputs(spec, fields, 0, layout, true).unwrap_err();
        error.to_string()
    };
    for layout in [Layout::Left, Layout::Jagged, Layout::Packed] {
        for output in outputs(&ALL, &[], 0, layout, true).unwrap() {
            let field = field(&output.key, FieldKind::Row);
            if field.weighs {
                continue;
            }
            let found = message(&[&field], &ALL, layout);
            let expected = format!("'{0}': the batch's own and fields['{0}']", output.key);
            assert!(found.contains(&expected), "{found}");
        }
    }
    let joined = field("images", FieldKind::Array { is_joined: true });
    let other = field("images_offsets", FieldKind::Row);
    assert_eq!(
        message(&[&other, &joined], &ALL, Layout::Left),
        "two outputs would be 'images_offsets': fields['images_offsets'] and the offsets of \
         fields['images']"
    );
    let rewards = FieldSpec {
        is_plain: true,
        ..field("rewards", FieldKind::Response)
    };
    let own = field("rewards", FieldKind::Sequence);
    assert_eq!(
        message(&[&rewards, &own], &ALL, Layout::Left),
        "two outputs would be 'rewards': the argument rewards and fields['rewards']"
    );
    let mask = FieldSpec {
        weighs: false,
        ..field(LOSS_MASK, FieldKind::Sequence)
    };
    let found = message(&[&mask], &ALL, Layout::Left);
    assert!(
        found.contains("the batch's own and fields['loss_mask']"),
        "{found}"
    );
    let unmasked = OutputSpec {
        loss_mask: None,
        labels: None,
        ..ALL
    };
    let labels = field("labels", FieldKind::Sequence);
    assert!(outputs(&unmasked, &[&mask, &labels], 0, Layout::Left, false).is_ok());
}

#[test]
fn a_loss_mask_follows_from_the_plan_where_no_field_is_one() {
    let routes = field("routes", FieldKind::EXPERTS);
    let mask = field(LOSS_MASK, FieldKind::Response);
    let table = outputs(&ALL, &[&routes], 0, Layout::Right, false).unwrap();
    let rows: Vec<_> = table
        .iter()
        .map(|it| (&*it.key, it.align, it.field()))
        .collect();
    assert_eq!(
        rows[4..],
        [
            ("labels", OutputAlign::Sequence, None),
            (LOSS_MASK, OutputAlign::Response, None),
            ("routes", OutputAlign::Sequence, Some(0)),
            ("router_padding_mask", OutputAlign::Sequence, Some(0)),
        ]
    );
    let table = outputs(&ALL, &[&mask], 0, Layout::Right, false).unwrap();
    assert_eq!(table[5].what, What::Field(0));
    for (beside, count) in [(Beside::Ids, 2), (Beside::Nothing, 0)] {
        let spec = OutputSpec { beside, ..ALL };
        let table = outputs(&spec, &[], 0, Layout::Packed, true).unwrap();
        assert_eq!(table.len(), count);
    }
}
