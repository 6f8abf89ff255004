Š‡
C
xPlaceholder*
dtype0*$
shape:ÿÿÿÿÿÿÿÿÿ
:
kVarHandleOp*
dtype0*
shape:
$
krReadVariableOpk*
dtype0
:
cConv2Dxkr*
strides
*
paddingSAME

rReluc
K
pMaxPoolr*
strides
*
paddingVALID*
ksize

=
shapeConst*
dtype0* 
valueB:ÿÿÿÿÿÿÿÿÿ

fReshape€pshape
2
wVarHandleOp*
dtype0*
shape
:


wrReadVariableOpw

mMatMulfwr

oSoftmaxm