”U„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm…
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapexpshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm„
C
xPlaceholder*$
shape:ÿÿÿÿÿÿÿÿÿ*
dtype0
:
kVarHandleOp*
shape:*
dtype0
!
krReadVariableOp*
dtype0
:
cConv2Dxkr*
paddingSAME*
strides


rReluc
K
pMaxPoolr*
paddingVALID*
strides
*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshapepshape
2
wVarHandleOp*
shape
:
*
dtype0

wrReadVariableOpw

mMatMulfwr

oSoftmaxm